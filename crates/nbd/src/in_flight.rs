//! The limit on the requests of a connection that are in flight.

use crate::protocol::PAYLOAD_BYTES_MAX;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The most requests of one connection in flight.
pub(crate) const REQUESTS_IN_FLIGHT_MAX: usize = 64;

/// The most payload bytes of one connection in flight. The longest request fits.
pub(crate) const BYTES_IN_FLIGHT_MAX: usize = PAYLOAD_BYTES_MAX as usize;

/// Counts a connection's requests in flight, and makes the reading thread wait at the limit.
///
/// A request is in flight from its header's arrival until its reply is written to the socket, or dropped
/// because the client is gone. So the limit bounds the memory of a client that sends requests and never
/// reads replies, too.
#[derive(Debug, Default)]
pub(crate) struct InFlightLimit {
    counts: Mutex<InFlightCounts>,
    /// Signalled when a request leaves.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct InFlightCounts {
    requests: usize,
    bytes: usize,
}

impl InFlightLimit {
    /// Waits until a request with `bytes` of payload fits, and counts the request until the place is dropped.
    /// `bytes` is at most [`BYTES_IN_FLIGHT_MAX`].
    pub(crate) fn admit(self: &Arc<InFlightLimit>, bytes: usize) -> InFlightPlace {
        assert!(bytes <= BYTES_IN_FLIGHT_MAX, "a request of {bytes} bytes never fits");
        let is_full = |counts: &mut InFlightCounts| {
            counts.requests >= REQUESTS_IN_FLIGHT_MAX || counts.bytes + bytes > BYTES_IN_FLIGHT_MAX
        };
        let mut counts =
            self.freed.wait_while(self.counts(), is_full).unwrap_or_else(PoisonError::into_inner);
        counts.requests += 1;
        counts.bytes += bytes;
        InFlightPlace { limit: self.clone(), bytes }
    }

    fn counts(&self) -> MutexGuard<'_, InFlightCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of one request in flight. Dropping the place frees it for the next request.
#[derive(Debug)]
pub(crate) struct InFlightPlace {
    limit: Arc<InFlightLimit>,
    bytes: usize,
}

impl Drop for InFlightPlace {
    fn drop(&mut self) {
        let mut counts = self.limit.counts();
        counts.requests -= 1;
        counts.bytes -= self.bytes;
        self.limit.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Asserts that a request of `bytes` waits for `places`, and is admitted once they are dropped.
    fn assert_waits_for(places: Vec<InFlightPlace>, limit: &Arc<InFlightLimit>, bytes: usize) {
        let (sender, admitted) = mpsc::channel();
        let limit_of_thread = limit.clone();
        std::thread::spawn(move || sender.send(limit_of_thread.admit(bytes)));
        assert!(admitted.recv_timeout(Duration::from_millis(50)).is_err(), "the request did not wait");
        drop(places);
        let place = admitted.recv_timeout(Duration::from_secs(20)).expect("the request is admitted");
        assert_eq!(place.bytes, bytes);
        drop(place);
        let counts = limit.counts();
        assert_eq!((counts.requests, counts.bytes), (0, 0));
    }

    #[test]
    fn the_number_of_requests_is_limited() {
        let limit = Arc::new(InFlightLimit::default());
        let places = (0..REQUESTS_IN_FLIGHT_MAX).map(|_| limit.admit(0)).collect();
        assert_waits_for(places, &limit, 0);
    }

    #[test]
    fn the_longest_request_waits_for_all_bytes() {
        let limit = Arc::new(InFlightLimit::default());
        let places = vec![limit.admit(1)];
        assert_waits_for(places, &limit, BYTES_IN_FLIGHT_MAX);
    }
}
