# What a Python program does with a store: see python.rs.
import array, csv, errno, io, os, subprocess, sys, threading, time, zipfile

import weir

path = sys.argv[1]


def refused(expected, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except OSError as error:
        assert error.errno == expected, (error, expected)
        return error
    raise AssertionError(f"{call} works")


assert "findmnt" in refused(errno.ENOENT, weir.open_store, path + "/nothing").strerror

with weir.open_store(path, umask=0o077) as store:
    # The store is this process's. While a thread waits for it, others run.
    errors = []
    opener = threading.Thread(target=lambda: errors.append(refused(errno.EBUSY, weir.open_store, path)))
    opener.start()
    ticks = 0
    while opener.is_alive():
        time.sleep(0.01)
        ticks += 1
    assert f"in use by process {os.getpid()}" in errors[0].strerror
    assert ticks > 20, ticks

    # Files are the interpreter's own kinds.
    store.mkdir("/d")
    with store.open("/d/table.csv", "w", newline="") as file:
        csv.writer(file).writerows([i, i * i] for i in range(1000))
        weir.fsync(file)
    with store.open("d/table.csv", newline="") as file:
        assert sum(int(square) for _, square in csv.reader(file)) == sum(i * i for i in range(1000))
    text = os.urandom(1000).hex() * 100
    with store.open("/a.zip", "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text", text)
    with store.open("/a.zip", "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None and archive.read("text").decode() == text
    with store.open("/a.zip", "rb+") as file, zipfile.ZipFile(file, "a") as archive:
        archive.writestr("more", "more")
    with store.open("/a.zip", "rb") as file:
        assert zipfile.ZipFile(file).namelist() == ["text", "more"]

    raw = store.open("/raw", "wb+", buffering=0)
    assert isinstance(raw, io.RawIOBase) and isinstance(raw, weir.File)
    big = os.urandom(3 << 20)
    assert raw.write(bytearray(big)) == len(big) and raw.seek(0) == 0 and raw.readall() == big
    part = bytearray(b"........")
    raw.seek(len(big) - 3)
    assert raw.readinto(part) == 3 and part == big[-3:] + b"....."
    assert raw.pwrite(memoryview(b"xyz"), 5) == 3 and raw.pread(5, 4) == big[4:5] + b"xyz" + big[8:9]
    assert raw.truncate(10) == 10 and raw.stat().st_size == 10
    for bad in (lambda: raw.fileno(), lambda: store.open("/raw", "rb", buffering=0).write(b"x")):
        try:
            bad()
            raise AssertionError("it is refused")
        except io.UnsupportedOperation:
            pass
    store.open("/raw", "ab").close()
    refused(errno.EEXIST, store.open, "/raw", "x")
    with store.open("/raw", "a+") as file:
        assert file.write("end") == 3 and file.seek(0) == 0
    assert store.stat("/raw").st_size == 13

    assert store.open("/raw", "r+b", buffering=0).mode == "rb+" and store.open("/raw").mode == "r"
    refused(errno.EISDIR, store.open, "/d")
    refused(errno.ENOENT, store.open, "/absent")
    for mode in ("ww", "r++", "q", ""):
        try:
            store.open("/raw", mode)
            raise AssertionError(mode)
        except ValueError:
            pass
    with store.open("/raw", "rb", buffering=0) as file:
        assert file.pread(1 << 50, 1) == file.readall()[1:]
        huge = bytearray(1 << 20)
        assert file.seek(1) == 1 and file.readinto(huge) == 12 and file.read(5) == b""
    numbers = array.array("i", [1, 2, 3])
    with store.open("/numbers", "wb+", buffering=0) as file:
        assert file.write(numbers) == 12 and file.seek(0) == 0
        again = array.array("i", [0, 0, 0])
        assert file.readinto(again) == 12 and again == numbers
    store.unlink("/numbers")
    try:
        weir.fsync(sys.stdout)
        raise AssertionError("it is refused")
    except TypeError as error:
        assert "not a file of a store" in str(error)

    # The functions of os.
    found = store.stat("/d/table.csv")
    assert isinstance(found, os.stat_result) and found.st_mode == 0o100600 and found.st_nlink == 1
    store.utime("/raw", ns=(1_500_000_001, 2_500_000_002))
    assert store.stat("/raw").st_mtime_ns == 2_500_000_002 and store.stat("/raw").st_atime == 1.500000001
    store.symlink("/raw", "/link")
    assert store.readlink("/link") == "/raw" and store.lstat("/link").st_mode & 0o170000 == 0o120000
    store.rename("/raw", "/d/moved")
    assert isinstance(refused(errno.ENOENT, store.stat, "/link"), FileNotFoundError)
    assert refused(errno.ENOENT, store.unlink, "/raw").filename == "/raw"
    store.setxattr("/d/moved", "user.note", b"kept")
    assert store.getxattr("/d/moved", "user.note") == b"kept" and store.listxattr("/d/moved") == ["user.note"]
    store.chmod("/d/moved", 0o640)
    store.chown("/d/moved", -1, -1)
    assert store.access("/d/moved", os.R_OK) and not store.access("/d/moved", os.X_OK)
    assert sorted(store.listdir()) == ["a.zip", "d", "link"] and sorted(store.listdir("/d")) == ["moved", "table.csv"]
    store.snapshot("night")
    refused(errno.ENOTEMPTY, store.rmdir, "/d")

    # Several changes: all of them or none.
    with store.open("/one", "wb") as one, store.open("/two", "w") as two:
        with store.batch() as batch:
            batch.pwrite(one, b"40", 0)
            batch.pwrite(two, bytearray(b"60"), 1)
            batch.rename("/d/moved", "/two-more")
        assert store.stat("/one").st_size == 2 and store.stat("/two").st_size == 3
        store.rename("/two-more", "/d/moved")

        def both(absent):
            with store.batch() as batch:
                batch.pwrite(one, b"of a batch that fails", 0)
                batch.unlink(absent)

        assert refused(errno.ENOENT, both, "/absent").filename == "/absent"
        refused(errno.EISDIR, both, "/d")
        try:
            with store.batch() as batch:
                batch.unlink("/one")
                raise KeyError
        except KeyError:
            pass
        assert store.stat("/one").st_size == 2
        error = refused(errno.ENOENT, store.rename, "/one", "/absent/one")
        assert (error.filename, error.filename2) == ("/one", "/absent/one")
    store.unlink("/one")
    store.unlink("/two")

    # Threads that wait let others run, and threads that share a file wait for each other.
    shared = store.open("/shared", "wb", buffering=0)

    def append():
        for _ in range(100):
            shared.write(b"x" * 100)
            shared.sync()

    threads = [threading.Thread(target=append) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert shared.tell() == 40_000 and store.stat("/shared").st_size == 40_000

    # A forked child has none of its parent's files.
    child = os.fork()
    if child == 0:
        try:
            refused(errno.EBADF, shared.write, b"x")
            refused(errno.EBADF, store.commit)
            del store, shared
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    late = store.open("/late", "wb")

# After the end.
refused(errno.EBADF, store.stat, "/")
refused(errno.EBADF, shared.write, b"x")
store.close()
late.write(b"not stored")
refused(errno.EBADF, late.flush)
refused(errno.EBADF, late.close)
shared.close()
try:
    raw.write(b"x")
except (OSError, ValueError):
    pass
with weir.open_store(path, volume="night", read_only=True) as store:
    refused(errno.EROFS, store.mkdir, "/new")
    assert store.stat("/d/moved").st_size == 13

refused(errno.EINVAL, weir.open_store, path, memory_bytes=1)
with weir.open_store(path, volume="night") as store:
    refused(errno.EROFS, store.open, "/d/moved", "r+")
    assert not store.access("/d/moved", os.W_OK)

# A store that is open when the program ends is closed.
open_at_end = "import sys, weir; store = weir.open_store(sys.argv[1]); file = store.open('/e', 'wb', 0); file.write(b'x')"
subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", open_at_end, path], check=True)
with weir.open_store(path) as store:
    assert store.stat("/e").st_size == 1

# A store that nobody names is closed.
weir.open_store(path).open("/f", "w").write("x")
with weir.open_store(path) as store:
    assert store.stat("/f").st_size == 1
print("done")
