/* call: calls that tests need to make from processes of their own, or that safe Rust has no words for.
 *
 *   call map FILE LEN OFFSET TEXT shared|private none|sync   stores TEXT into a mapping; says "stored", and waits
 *   call churn FILE LEN                                      stores into each page of a mapping, over and over; says "stored" once
 *   call touch FILE LEN OFFSET                               reads one byte of a mapping: past the file it is killed
 *   call lock FILE posix|ofd START LEN read|write try|wait   says "held" or "busy PID", and waits
 *   call limit BYTES FILE OFFSET LEN write|allocate|truncate killed|told
 *                                                            does it under RLIMIT_FSIZE; says what came of it
 *   call overtake FILE TIMES DEPTH                           DEPTH writes of 16 KiB at once, with O_DIRECT and libaio's calls, TIMES
 *                                                            times, while others read the file through the kernel's cache; says how
 *                                                            often a read after a write had ended found older bytes
 *   call rwf FILE OFFSET TEXT FLAGS                          pwritev2 with these flags (a number)
 *
 * What waits ends when its standard input does. What a call gives is said in one word or number, errors by number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void say(const char *word, long number) {
    printf("%s %ld\n", word, number);
    fflush(stdout);
}

static int failed(const char *call) {
    say(call, errno);
    return 1;
}

static void wait_for_the_end(void) {
    char byte;
    while (read(0, &byte, 1) > 0) {}
}

static int map(char **arg) {
    size_t len = strtoull(arg[1], NULL, 0), offset = strtoull(arg[2], NULL, 0);
    int flags = strcmp(arg[4], "shared") == 0 ? MAP_SHARED : MAP_PRIVATE;
    int file = open(arg[0], O_RDWR);
    if (file < 0) return failed("open");
    char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, flags, file, 0);
    if (bytes == MAP_FAILED) return failed("mmap");
    close(file);
    memcpy(bytes + offset, arg[3], strlen(arg[3]));
    if (strcmp(arg[5], "sync") == 0 && msync(bytes, len, MS_SYNC) != 0) return failed("msync");
    say("stored", 0);
    wait_for_the_end();
    /* Whether what was stored can still be written back. */
    if (flags == MAP_SHARED && msync(bytes, len, MS_SYNC) != 0) return failed("msync");
    say("synced", 0);
    return 0;
}

enum { OVERTAKEN = 16384, READERS = 2, DEPTH_MAX = 512 };

static void *read_all_the_time(void *path) {
    static _Thread_local char bytes[1 << 17];
    int file = open(path, O_RDONLY);
    for (off_t at = 0; ; at += sizeof bytes) {
        ssize_t got = pread(file, bytes, sizeof bytes, at);
        if (got < 0) return NULL;
        if (got == 0) at = -(off_t)sizeof bytes;
    }
}

static int overtake(char **arg) {
    long times = atol(arg[1]), depth = atol(arg[2]), old = 0;
    int direct = open(arg[0], O_RDWR | O_CREAT | O_DIRECT, 0644), cached = open(arg[0], O_RDONLY);
    if (direct < 0 || cached < 0) return failed("open");
    char *bytes, found[OVERTAKEN];
    if (depth > DEPTH_MAX || posix_memalign((void **)&bytes, 4096, OVERTAKEN) != 0) return failed("memory");
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, depth, &context) != 0) return failed("io_setup");
    pthread_t reader;
    for (int number = 0; number < READERS; number++) pthread_create(&reader, NULL, read_all_the_time, arg[0]);
    for (long time = 0; time < times; time++) {
        memset(bytes, 1 + time % 250, OVERTAKEN);
        static struct iocb writes[DEPTH_MAX], *all[DEPTH_MAX];
        static struct io_event ended[DEPTH_MAX];
        for (long number = 0; number < depth; number++) {
            writes[number] = (struct iocb){.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = direct};
            writes[number].aio_offset = number * OVERTAKEN;
            writes[number].aio_nbytes = OVERTAKEN;
            writes[number].aio_buf = (unsigned long)bytes;
            all[number] = &writes[number];
        }
        for (long begun = 0; begun < depth;) {
            long more = syscall(SYS_io_submit, context, depth - begun, all + begun);
            if (more < 1) return failed("io_submit");
            begun += more;
        }
        if (syscall(SYS_io_getevents, context, depth, depth, ended, NULL) != depth) return failed("io_getevents");
        for (long number = 0; number < depth; number++) {
            if (ended[number].res != OVERTAKEN) return failed("write");
            if (pread(cached, found, OVERTAKEN, number * OVERTAKEN) != OVERTAKEN) return failed("pread");
            old += memcmp(found, bytes, OVERTAKEN) != 0;
        }
    }
    say("old", old);
    return 0;
}

static int churn(char **arg) {
    size_t len = strtoull(arg[1], NULL, 0);
    int file = open(arg[0], O_RDWR);
    if (file < 0) return failed("open");
    volatile char *bytes = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) return failed("mmap");
    struct pollfd end = {.fd = 0, .events = POLLIN};
    for (int round = 0; round == 0 || poll(&end, 1, 0) == 0; round++) {
        for (size_t at = 0; at < len; at += 4096) bytes[at] = 1 + round % 100;
        if (round == 0) say("stored", 0);
    }
    return 0;
}

static int touch(char **arg) {
    size_t len = strtoull(arg[1], NULL, 0), offset = strtoull(arg[2], NULL, 0);
    int file = open(arg[0], O_RDONLY);
    if (file < 0) return failed("open");
    volatile char *bytes = mmap(NULL, len, PROT_READ, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) return failed("mmap");
    say("byte", bytes[offset]);
    return 0;
}

static int lock(char **arg) {
    int is_ofd = strcmp(arg[1], "ofd") == 0, waits = strcmp(arg[5], "wait") == 0;
    int file = open(arg[0], O_RDWR);
    if (file < 0) return failed("open");
    struct flock lock = {
        .l_type = strcmp(arg[4], "read") == 0 ? F_RDLCK : F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = strtoll(arg[2], NULL, 0),
        .l_len = strtoll(arg[3], NULL, 0),
    };
    int set = is_ofd ? (waits ? F_OFD_SETLKW : F_OFD_SETLK) : (waits ? F_SETLKW : F_SETLK);
    if (fcntl(file, set, &lock) != 0) {
        if (errno != EAGAIN && errno != EACCES) return failed("fcntl");
        if (fcntl(file, is_ofd ? F_OFD_GETLK : F_GETLK, &lock) != 0) return failed("getlk");
        say("busy", lock.l_pid);
        return 0;
    }
    say("held", 0);
    wait_for_the_end();
    return 0;
}

static int limit(char **arg) {
    struct rlimit most = {strtoull(arg[0], NULL, 0), RLIM_INFINITY};
    off_t offset = strtoll(arg[2], NULL, 0), len = strtoll(arg[3], NULL, 0);
    int file = open(arg[1], O_RDWR | O_CREAT, 0600);
    if (file < 0) return failed("open");
    if (strcmp(arg[5], "told") == 0) signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &most) != 0) return failed("setrlimit");
    char *bytes = calloc(1, len);
    long done = strcmp(arg[4], "write") == 0      ? pwrite(file, bytes, len, offset)
                : strcmp(arg[4], "allocate") == 0 ? fallocate(file, 0, offset, len)
                                                  : ftruncate(file, offset + len);
    if (done < 0) return failed("errno");
    say("did", done);
    return 0;
}

static int rwf(char **arg) {
    int file = open(arg[0], O_RDWR);
    if (file < 0) return failed("open");
    struct iovec bytes = {arg[2], strlen(arg[2])};
    ssize_t done = pwritev2(file, &bytes, 1, strtoll(arg[1], NULL, 0), (int)strtol(arg[3], NULL, 0));
    if (done < 0) return failed("errno");
    say("did", done);
    return 0;
}

int main(int count, char **arg) {
    if (count == 8 && strcmp(arg[1], "map") == 0) return map(arg + 2);
    if (count == 4 && strcmp(arg[1], "churn") == 0) return churn(arg + 2);
    if (count == 5 && strcmp(arg[1], "touch") == 0) return touch(arg + 2);
    if (count == 8 && strcmp(arg[1], "lock") == 0) return lock(arg + 2);
    if (count == 8 && strcmp(arg[1], "limit") == 0) return limit(arg + 2);
    if (count == 5 && strcmp(arg[1], "overtake") == 0) return overtake(arg + 2);
    if (count == 6 && strcmp(arg[1], "rwf") == 0) return rwf(arg + 2);
    fprintf(stderr, "call: see the top of call.c\n");
    return 2;
}
