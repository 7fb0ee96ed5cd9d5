# What a Python program does with files, on a store: see run.rs.
import csv, mmap, os, shutil, sqlite3, subprocess, tempfile, zipfile

os.makedirs("@@/a/b/c")
with open("@@/a/text", "w") as file:
    file.write("hello\n" * 1000)
with open("@@/a/text") as file:
    assert file.readlines() == ["hello\n"] * 1000
os.rename("@@/a/text", "@@/a/b/text")
assert os.stat("@@/a/b/text").st_size == 6000
assert sorted(os.listdir("@@/a")) == ["b"] and [e.name for e in os.scandir("@@/a") if e.is_dir()] == ["b"]
try:
    os.stat("@@/a/text")
    raise AssertionError("it was renamed")
except FileNotFoundError:
    pass

with zipfile.ZipFile("@@/archive.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    archive.write("@@/a/b/text", "text")
with zipfile.ZipFile("@@/archive.zip") as archive:
    assert archive.testzip() is None and archive.read("text") == b"hello\n" * 1000

os.mkdir("@@/kept")
with open("@@/kept/data.csv", "w", newline="") as file:
    csv.writer(file).writerows([i, i * i] for i in range(10))
with open("@@/kept/data.csv", newline="") as file:
    assert len(list(csv.reader(file))) == 10

database = sqlite3.connect("@@/python.db")
database.execute("pragma journal_mode=wal")
with database:
    database.execute("create table t(a)")
    database.executemany("insert into t values(?)", [(i,) for i in range(100)])
second = sqlite3.connect("@@/python.db")
assert second.execute("select sum(a) from t").fetchone() == (4950,)
second.close()
database.close()

with open("@@/mapped", "wb+") as file:
    file.write(b"a" * 10000)
    file.flush()
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[5:8] = b"XYZ"
        memory.flush()
        file.seek(0)
        assert file.read(10) == b"aaaaaXYZaa"
        file.seek(0)
        file.write(b"written")
        file.flush()
        assert memory[:9] == b"writtenZa"
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        assert memory[:9] == b"writtenZa" and len(memory) == 10000

# SQLite's index of a log: mapped in pieces, between which the file is made longer by a write.
with open("@@/pieces", "wb+") as file:
    os.ftruncate(file.fileno(), 32768)
    first = mmap.mmap(file.fileno(), 32768)
    first[:5] = b"first"
    os.pwrite(file.fileno(), b"\0", 65535)
    second = mmap.mmap(file.fileno(), 32768, offset=32768)
    second[:6] = b"second"
    os.pwrite(file.fileno(), b"x", 100)
    assert first[:5] == b"first" and first[100:101] == b"x" and second[:6] == b"second"
    first.close()
    second.close()
    assert os.pread(file.fileno(), 5, 0) == b"first" and os.pread(file.fileno(), 6, 32768) == b"second"

with tempfile.TemporaryDirectory(dir=os.path.abspath("@@")) as directory:
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        file.write(b"x")
shutil.copytree("@@/a", "@@/copy")
shutil.rmtree("@@/a")
assert os.path.realpath("@@/copy/../copy/b").endswith("/@@/copy/b")
here = os.getcwd()
os.chdir("@@/copy")
assert os.getcwd() == here + "/@@/copy" and os.path.exists("b/text")
os.chdir(here)

# A program that is started gets the store; a forked child has none of its parent's files.
assert subprocess.run(["cat", "@@/copy/b/text"], capture_output=True).stdout == b"hello\n" * 1000
inherited = open("@@/copy/b/text")
if os.fork() == 0:
    try:
        os.read(inherited.fileno(), 1)
    except OSError as error:
        os._exit(error.errno)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 9
assert inherited.read(5) == "hello"
print("done")
