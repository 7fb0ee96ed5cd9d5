/* misuse CASE: uses files of a store in one unusual way, under `weir run`. Exits with 1 and a message when a call does
 * something else than on any file system of Linux. The working directory is of the machine, and empty. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define must(worked) must_at(worked, #worked, __LINE__)
#define fails_with(call, wanted) fails_at((errno = 0, (call) == -1), wanted, #call, __LINE__)

extern char **environ;

static void must_at(int worked, const char *what, int line) {
    if (!worked) {
        fprintf(stderr, "line %d: %s: %s\n", line, what, strerror(errno));
        _exit(1);
    }
}

static void fails_at(int failed, int wanted, const char *what, int line) {
    if (!failed || errno != wanted) {
        fprintf(stderr, "line %d: %s: %s, not %s\n", line, what, failed ? strerror(errno) : "works", strerror(wanted));
        _exit(1);
    }
}

static int made(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0);
    return fd;
}

static void holds(const char *path, const char *wanted) {
    char found[256];
    int fd = open(path, O_RDONLY);
    must(fd >= 0);
    ssize_t length = read(fd, found, sizeof found - 1);
    must(length >= 0);
    found[length] = 0;
    must(close(fd) == 0);
    if (strcmp(found, wanted) != 0) {
        fprintf(stderr, "%s has \"%s\", not \"%s\"\n", path, found, wanted);
        _exit(1);
    }
}

static void ends_well(pid_t pid) {
    int status;
    must(pid > 0);
    must(waitpid(pid, &status, 0) == pid);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *running(void *(*function)(void *), pthread_t *thread, void *argument) {
    must(pthread_create(thread, NULL, function, argument) == 0);
    return thread;
}

/* A change of directory that fails leaves a program where it is: the machine's file survives. */
static void failed_chdir(void) {
    must(close(made("file")) == 0);
    must(mkdir("@@/d", 0755) == 0 && close(made("@@/d/file")) == 0);
    int elsewhere = open(".", O_RDONLY | O_DIRECTORY);
    must(chdir("@@/d") == 0);
    fails_with(chdir("/no/such/directory"), ENOENT);
    fails_with(fchdir(-1), EBADF);
    must(unlink("file") == 0);
    fails_with(access("file", F_OK), ENOENT);
    must(fchdir(elsewhere) == 0);
    must(access("file", F_OK) == 0);
}

/* Relative paths of calls that are not served do not reach the machine's directory. */
static void unserved_relative_path(void) {
    must(close(made("file")) == 0);
    must(mkdir("@@/d", 0755) == 0 && chdir("@@/d") == 0);
    must(syscall(SYS_unlinkat, AT_FDCWD, "file", 0) == -1);
    must(syscall(SYS_openat, AT_FDCWD, "made", O_CREAT | O_WRONLY, 0644) == -1);
    char here[PATH_MAX];
    must(getcwd(here, sizeof here) != NULL && strstr(here, "/@@/d") != NULL);
    must(mkdir("@@/e", 0755) == 0 && chdir("@@/e") == 0);
    must(getcwd(here, sizeof here) != NULL && strstr(here, "/@@/e") != NULL);
    *strstr(here, "/@@") = 0;
    must(chdir(here) == 0);
    must(access("file", F_OK) == 0);
    fails_with(access("made", F_OK), ENOENT);
}

/* The working directory moves with its directory, or is lost: another one under its old name is not meant. */
static void renamed_working_directory(void) {
    must(mkdir("@@/d", 0755) == 0 && chdir("@@/d") == 0);
    must(rename("@@/d", "@@/moved") == 0 && mkdir("@@/d", 0755) == 0);
    int fd = open("file", O_CREAT | O_WRONLY, 0644);
    fails_with(access("@@/d/file", F_OK), ENOENT);
    must(fd == -1 || access("@@/moved/file", F_OK) == 0);
}

/* A call may close a number without the shim. The number then stands for what the program opens next. */
static void closed_unseen(void) {
    int fd = made("@@/f");
    must(write(fd, "weir", 4) == 4);
    must(syscall(SYS_close, fd) == 0);
    must(made("outside") == fd);
    must(write(fd, "outside", 7) == 7 && lseek(fd, 0, SEEK_SET) == 0);
    must(close(fd) == 0);
    holds("outside", "outside");
    holds("@@/f", "weir");
}

static void closed_stream(void) {
    int fd = made("@@/f");
    must(dup2(fd, 1) == 1);
    must(fclose(stdout) == 0 || errno == EBADF);
    must(made("outside") == 1);
    must(write(1, "outside", 7) == 7);
    must(close(1) == 0);
    holds("outside", "outside");
    holds("@@/f", "");
}

/* By its name in /dev/fd a placeholder must not become a file that takes everything, and keeps nothing. */
static void dev_fd(void) {
    int fd = made("@@/f");
    char name[64];
    snprintf(name, sizeof name, "/dev/fd/%d", fd);
    int again = open(name, O_WRONLY);
    must(again == -1 || (write(again, "x", 1) == 1 && lseek(fd, 0, SEEK_END) == 1));
    snprintf(name, sizeof name, "echo x > /dev/fd/%d || exit 3", fd);
    int status = system(name);
    must(WIFEXITED(status) && WEXITSTATUS(status) != 0);
}

static void duplicates(void) {
    int fd = made("@@/f"), outside = made("outside");
    must(dup2(fd, fd) == fd);
    fails_with(dup3(fd, fd, 0), EINVAL);
    fails_with(dup3(outside, fd, 12345), EINVAL);
    must(write(fd, "a", 1) == 1);
    fails_with(dup2(999, fd), EBADF);
    must(write(fd, "b", 1) == 1);
    int high = fcntl(fd, F_DUPFD_CLOEXEC, 300);
    must(high == 300 && write(high, "c", 1) == 1 && close(fd) == 0);
    fails_with(write(fd, "d", 1), EBADF);
    fails_with(close(fd), EBADF);
    must(write(high, "e", 1) == 1);
    must(dup2(outside, high) == high && write(high, "o", 1) == 1);
    holds("@@/f", "abce");
    holds("outside", "o");
    must(dup2(made("@@/g"), outside) == outside && write(outside, "g", 1) == 1);
    holds("@@/g", "g");
    holds("outside", "o");
    fails_with(fcntl(outside, F_DUPFD, -1), EINVAL);
    fails_with(close_range(10, 5, 0), EINVAL);
    must(close_range(outside, outside, 0) == 0);
    fails_with(write(outside, "g", 1), EBADF);
    closefrom(3);
    holds("@@/g", "g");
}

/* As a daemon does it: every number is closed, and the next files get the lowest. */
static void all_closed(void) {
    int fd = made("@@/f");
    must(write(fd, "f", 1) == 1);
    for (int each = 0; each < 1024; each++)
        if (each != 2) close(each);
    must(made("@@/g") == 0 && made("outside") == 1);
    must(write(0, "g", 1) == 1 && write(1, "o", 1) == 1 && fsync(0) == 0);
    holds("@@/f", "f");
    holds("@@/g", "g");
    holds("outside", "o");
    fd = made("@@/h");
    must(close_range(0, 1, 0) == 0 && close_range(3, ~0U, 0) == 0);
    holds("@@/f", "f");
    holds("@@/g", "g");
}

static void many_descriptors(void) {
    struct rlimit limit = {100000, 100000};
    must(setrlimit(RLIMIT_NOFILE, &limit) == 0 || getrlimit(RLIMIT_NOFILE, &limit) == 0);
    must(close(made("@@/f")) == 0);
    int last = -1, fd, count = 0;
    while ((fd = open("@@/f", O_RDWR)) >= 0) {
        last = fd;
        count++;
    }
    must(errno == EMFILE);
    must(count > 1000 && write(last, "x", 1) == 1);
    fails_with(dup(last), EMFILE);
    must(close(last) == 0);
    must(open("@@/f", O_RDWR) == last);
    if (limit.rlim_cur > 70000)
        fails_with(dup2(last, 70000), EBADF);
    if (limit.rlim_cur > 70000)
        fails_with(fcntl(last, F_DUPFD, 70000), EINVAL);
    closefrom(3);
    holds("@@/f", "x");
}

static int handled_fd;
static volatile long handled, entered;

static void write_in_handler(int signal) {
    (void)signal;
    int before = errno;
    entered++;
    if (pwrite(handled_fd, "h", 1, entered % 64) == 1) handled++;
    errno = before;
}

static void tick(void (*handler)(int), long micros) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    must(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval timer = {{0, micros}, {0, micros}};
    must(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

/* A handler writes while its thread is in the same file, in a stream's buffer, and in the allocator. */
static void handler_writes(void) {
    handled_fd = made("@@/h");
    tick(write_in_handler, 200);
    int fd = made("@@/f");
    FILE *stream = fopen("@@/stream", "w+");
    must(stream != NULL);
    void *kept[64] = {0};
    while (handled < 300 || entered < 600) {
        must(pwrite(fd, "0123456789", 10, handled % 10000) == 10);
        must(fputs("stream", stream) >= 0 && fflush(stream) == 0);
        for (int index = 0; index < 2000; index++) {
            free(kept[index % 64]);
            kept[index % 64] = malloc((index * 7919) % 5000);
        }
    }
    tick(SIG_IGN, 0);
    must(fclose(stream) == 0 && fsync(handled_fd) == 0);
}

static volatile int swapped;

/* close and dup2 are allowed in a handler. What they do to a number counts, wherever the thread was. */
static void close_in_handler(int signal) {
    (void)signal;
    if (handled_fd >= 0) {
        close(handled_fd);
        handled_fd = -1;
        swapped++;
    }
}

static void handler_closes(void) {
    int fd = made("@@/f");
    char *page = calloc(1, PAGE);
    handled_fd = -1;
    tick(close_in_handler, 150);
    for (int round = 0; round < 300; round++) {
        int doomed = made("@@/doomed");
        handled_fd = doomed;
        while (handled_fd >= 0) must(pwrite(fd, page, PAGE, (round % 16) * PAGE) == PAGE);
        int outside = open("outside", O_RDWR | O_CREAT | O_TRUNC, 0644);
        must(outside == doomed);
        must(write(outside, "o", 1) == 1);
        struct stat of_number, of_name;
        must(fstat(outside, &of_number) == 0 && stat("outside", &of_name) == 0);
        must(of_number.st_ino == of_name.st_ino && of_name.st_size == 1);
        must(close(outside) == 0);
    }
    tick(SIG_IGN, 0);
}

static int append_fd;

static void *append_lines(void *argument) {
    char name[2] = {*(char *)argument, 0}, line[100];
    memset(line, name[0], sizeof line);
    line[99] = '\n';
    for (int index = 0; index < 3000; index++) {
        struct iovec parts[3] = {{line, 40}, {line + 40, 30}, {line + 70, 30}};
        must(writev(append_fd, parts, 3) == 100);
    }
    return NULL;
}

/* What one writev appends is not torn apart by another thread. */
static void appended_lines(void) {
    append_fd = open("@@/log", O_RDWR | O_CREAT | O_APPEND, 0644);
    pthread_t one, other;
    running(append_lines, &one, "a");
    running(append_lines, &other, "b");
    must(pthread_join(one, NULL) == 0 && pthread_join(other, NULL) == 0);
    char line[100];
    for (int index = 0; index < 6000; index++) {
        must(pread(append_fd, line, 100, index * 100) == 100 && line[99] == '\n');
        for (int at = 1; at < 99; at++) must(line[at] == line[0]);
    }
    must(lseek(append_fd, 0, SEEK_END) == 600000);
}

static void vectors(void) {
    int fd = made("@@/f");
    struct iovec parts[2] = {{"ab", 2}, {"cd", 2}};
    must(pwritev2(fd, parts, 2, 0, 0) == 4);
    int appended = pwritev2(fd, parts, 2, 0, RWF_APPEND);
    must(appended == 4 || errno == EOPNOTSUPP);
    char bytes[8];
    must(pread(fd, bytes, 4, 0) == 4 && memcmp(bytes, "abcd", 4) == 0);
    must(appended == -1 || (lseek(fd, 0, SEEK_END) == 8));
    struct iovec into[2] = {{bytes, 1}, {bytes + 1, 7}};
    must(preadv(fd, into, 2, 1) >= 3 && memcmp(bytes, "bcd", 3) == 0);
    fails_with(preadv(fd, into, 2, -1), EINVAL);
    fails_with(pwritev(fd, parts, 2, -1), EINVAL);
    must(ftruncate(fd, 4) == 0 && lseek(fd, 0, SEEK_SET) == 0);
    must(preadv2(fd, into, 2, -1, 0) == 4 && lseek(fd, 0, SEEK_CUR) == 4);
    volatile int no_count = -1;
    fails_with(readv(fd, into, no_count), EINVAL);
    fails_with(pread(fd, bytes, 1, -1), EINVAL);
    int directory = open("@@/", O_RDONLY);
    fails_with(read(directory, bytes, 1), EISDIR);
    int reader = open("@@/f", O_RDONLY), writer = open("@@/f", O_WRONLY);
    fails_with(write(reader, "x", 1), EBADF);
    fails_with(read(writer, bytes, 1), EBADF);
    fails_with((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, writer, 0), EACCES);
    fails_with((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, writer, 0), EACCES);
    fails_with((long)mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, directory, 0), ENODEV);
    fails_with(faccessat(fd, "", X_OK, AT_EMPTY_PATH), EACCES);
    must(faccessat(fd, "", R_OK, AT_EMPTY_PATH) == 0);
}

static void copied_bytes(void) {
    int inside = made("@@/f"), outside = made("outside");
    must(write(outside, "0123456789", 10) == 10 && lseek(outside, 0, SEEK_SET) == 0);
    int reader = open("@@/f", O_RDONLY);
    fails_with(sendfile(reader, outside, NULL, 4), EBADF);
    must(lseek(outside, 0, SEEK_CUR) == 0);
    must(sendfile(inside, outside, NULL, 4) == 4 && lseek(outside, 0, SEEK_CUR) == 4);
    int closed = open("/dev/null", O_RDONLY);
    fails_with(sendfile(closed, reader, NULL, 4), EBADF);
    must(lseek(reader, 0, SEEK_CUR) == 0);
    must(sendfile(outside, reader, NULL, 100) == 4);
    holds("@@/f", "0123");
    off_t from = 0, to = 0;
    ssize_t copied = copy_file_range(outside, &from, inside, &to, 4, 0);
    must(copied > 0 || errno == EXDEV);
    int pipes[2];
    must(pipe(pipes) == 0);
    fails_with(splice(reader, NULL, pipes[1], NULL, 4, 0), EINVAL);
}

static char *mapped(int fd, size_t bytes, int protection, int flags) {
    char *memory = mmap(NULL, bytes, protection, flags, fd, 0);
    must(memory != MAP_FAILED);
    return memory;
}

/* Memory that becomes writable later is written back, too, and that of a read-only descriptor cannot. */
static void mapping_made_writable(void) {
    int fd = made("@@/f");
    must(ftruncate(fd, 2 * PAGE) == 0);
    char *memory = mapped(fd, 2 * PAGE, PROT_READ, MAP_SHARED);
    must(mprotect(memory, PAGE, PROT_READ | PROT_WRITE) == 0);
    memcpy(memory, "later", 6);
    must(munmap(memory, 2 * PAGE) == 0);
    holds("@@/f", "later");
    int reader = open("@@/f", O_RDONLY);
    memory = mapped(reader, PAGE, PROT_READ, MAP_SHARED);
    fails_with(mprotect(memory, PAGE, PROT_READ | PROT_WRITE), EACCES);
}

static void mapping_remapped(void) {
    int fd = made("@@/f");
    must(ftruncate(fd, PAGE) == 0);
    char *memory = mapped(fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    must(ftruncate(fd, 64 * PAGE) == 0);
    memory = mremap(memory, PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    if (memory == MAP_FAILED) return;
    memcpy(memory + 63 * PAGE, "end", 3);
    must(munmap(memory, 64 * PAGE) == 0);
    char end[3];
    must(pread(fd, end, 3, 63 * PAGE) == 3 && memcmp(end, "end", 3) == 0);
    memory = mapped(fd, PAGE, PROT_READ, MAP_PRIVATE);
    memory = mremap(memory, PAGE, 64 * PAGE, MREMAP_MAYMOVE);
    must(memory == MAP_FAILED || memcmp(memory + 63 * PAGE, "end", 3) == 0);
    memory = mapped(fd, 64 * PAGE, PROT_READ, MAP_PRIVATE);
    must(madvise(memory, 64 * PAGE, MADV_DONTNEED) == 0);
    must(memcmp(memory + 63 * PAGE, "end", 3) == 0);
}

static int raced_fd;
static volatile int race_ends;

/* Writes each byte of a page once, by calls, and reads it back. */
static void *write_beside(void *argument) {
    (void)argument;
    for (int round = 1; round < 100; round++)
        for (int at = 64; at < 128; at++) {
            char wrote = round, found = 0;
            must(pwrite(raced_fd, &wrote, 1, at) == 1);
            must(pread(raced_fd, &found, 1, at) == 1);
            must(found == wrote);
        }
    race_ends = 1;
    return NULL;
}

/* A store into a mapping and writes beside it in the same page keep each other's bytes. */
static void mapping_and_writes(void) {
    raced_fd = made("@@/f");
    must(ftruncate(raced_fd, PAGE) == 0);
    char *memory = mapped(raced_fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    pthread_t writer;
    running(write_beside, &writer, NULL);
    long stored = 0;
    while (!race_ends) {
        memcpy(memory, &stored, sizeof stored);
        stored++;
        if (stored % 3 == 0) {
            must(msync(memory, PAGE, MS_ASYNC) == 0);
        } else {
            must(fallocate(raced_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 512, 512) == 0);
        }
        long known = stored - 1;
        must(memcmp(memory, &known, sizeof known) == 0);
    }
    must(pthread_join(writer, NULL) == 0);
    must(munmap(memory, PAGE) == 0);
    long kept;
    must(pread(raced_fd, &kept, sizeof kept, 0) == sizeof kept && kept == stored - 1);
}

static void *map_often(void *argument) {
    (void)argument;
    while (!race_ends) {
        char *memory = mapped(raced_fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
        must(msync(memory, PAGE, MS_ASYNC) == 0);
        must(munmap(memory, PAGE) == 0);
    }
    return NULL;
}

/* Mappings that come and go, and change nothing, undo no write of another thread. */
static void mapping_that_comes_and_goes(void) {
    raced_fd = made("@@/f");
    must(ftruncate(raced_fd, PAGE) == 0);
    pthread_t mapper;
    running(map_often, &mapper, NULL);
    write_beside(NULL);
    must(pthread_join(mapper, NULL) == 0);
}

/* A file that lost its last mapping while the store was full: its next sync must not succeed. */
static void mapping_of_a_full_store(void) {
    int fd = made("@@/f"), filler = made("@@/filler");
    size_t bytes = 4 << 20;
    must(ftruncate(fd, bytes) == 0);
    char *memory = mapped(fd, bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    char *noise = malloc(1 << 20);
    int random = open("/dev/urandom", O_RDONLY);
    do {
        must(read(random, noise, 1 << 20) == 1 << 20);
    } while (write(filler, noise, 1 << 20) > 0);
    must(errno == ENOSPC);
    for (size_t at = 0; at < bytes; at += 1 << 20) must(read(random, memory + at, 1 << 20) == 1 << 20);
    char *copy = malloc(bytes);
    memcpy(copy, memory, bytes);
    must(munmap(memory, bytes) == 0);
    fails_with(fsync(fd), ENOSPC);
    must(ftruncate(filler, 0) == 0 && fsync(filler) == 0);
    must(fsync(fd) == 0);
    char *found = malloc(bytes);
    must(pread(fd, found, bytes, 0) == (ssize_t)bytes && memcmp(found, copy, bytes) == 0);
}

static void mapping_truncated(void) {
    int fd = made("@@/f");
    must(ftruncate(fd, 3 * PAGE) == 0);
    char *memory = mapped(fd, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    memset(memory, 'm', 3 * PAGE);
    must(ftruncate(fd, 100) == 0 && ftruncate(fd, 2 * PAGE) == 0);
    char bytes[200];
    must(pread(fd, bytes, 200, 0) == 200 && bytes[99] == 'm' && bytes[100] == 0);
    must(memory[99] == 'm' && memory[100] == 0 && memory[PAGE] == 0);
    memory[150] = 'n';
    must(close(open("@@/f", O_RDWR | O_TRUNC)) == 0);
    must(ftruncate(fd, PAGE) == 0);
    must(memory[150] == 0 && pread(fd, bytes, 200, 0) == 200 && bytes[150] == 0);
    memory[10] = 'k';
    must(munmap(memory, 3 * PAGE) == 0);
    must(pread(fd, bytes, 11, 0) == 11 && bytes[10] == 'k');
}


/* A mapping that nobody syncs is kept, like a write, for all but its last second. */
static void mapping_before_a_kill(void) {
    int fd = made("@@/f");
    must(ftruncate(fd, PAGE) == 0);
    char *memory = mapped(fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    memcpy(memory, "stored", 7);
    sleep(3);
    raise(SIGKILL);
}

static void locks(void) {
    int one = made("@@/f"), other = open("@@/f", O_RDWR), same = dup(one);
    must(flock(one, LOCK_EX | LOCK_NB) == 0);
    fails_with(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    fails_with(flock(other, LOCK_SH | LOCK_NB), EWOULDBLOCK);
    must(flock(same, LOCK_SH | LOCK_NB) == 0 && flock(other, LOCK_SH | LOCK_NB) == 0);
    fails_with(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    must(close(one) == 0);
    fails_with(flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
    must(close(same) == 0);
    must(flock(other, LOCK_EX | LOCK_NB) == 0);
    fails_with(flock(other, 77), EINVAL);
    int third = open("@@/f", O_RDWR);
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 10};
    must(fcntl(other, F_OFD_SETLK, &range) == 0);
    struct flock asked = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 19, .l_len = 0};
    fails_with(fcntl(third, F_OFD_SETLK, &asked), EAGAIN);
    must(fcntl(third, F_OFD_GETLK, &asked) == 0 && asked.l_type == F_WRLCK && asked.l_start == 10 && asked.l_pid == -1);
    asked = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 20, .l_len = 1};
    must(fcntl(third, F_OFD_SETLK, &asked) == 0);
    range = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = 12, .l_len = 2};
    must(fcntl(other, F_OFD_SETLK, &range) == 0);
    asked = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 12, .l_len = 2};
    must(fcntl(third, F_OFD_SETLK, &asked) == 0);
    asked.l_len = 3;
    fails_with(fcntl(third, F_OFD_SETLK, &asked), EAGAIN);
    /* Those of the process itself never conflict in it. */
    asked = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET};
    must(fcntl(third, F_SETLK, &asked) == 0 && fcntl(other, F_SETLK, &asked) == 0);
}

static volatile int counted, counting;

static void *count_under_lock(void *argument) {
    (void)argument;
    for (int round = 0; round < 50; round++) {
        int fd = open("@@/lock", O_RDWR | O_CREAT, 0644);
        must(flock(fd, LOCK_EX) == 0);
        must(counting++ == 0);
        usleep(100);
        counted++;
        must(--counting == 0);
        must(close(fd) == 0);
    }
    return NULL;
}

static void do_nothing(int signal) { (void)signal; }

static void locks_wait(void) {
    pthread_t threads[4];
    for (int index = 0; index < 4; index++) running(count_under_lock, &threads[index], NULL);
    for (int index = 0; index < 4; index++) must(pthread_join(threads[index], NULL) == 0);
    must(counted == 200);
    /* A waiting thread is interrupted by a signal. */
    int one = made("@@/f"), other = open("@@/f", O_RDWR);
    must(flock(one, LOCK_EX) == 0);
    struct sigaction action = {.sa_handler = do_nothing};
    must(sigaction(SIGALRM, &action, NULL) == 0);
    /* Again and again: the first one may come before the wait. */
    struct itimerval timer = {{0, 100000}, {0, 100000}};
    must(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    fails_with(flock(other, LOCK_EX), EINTR);
}

static void names(void) {
    must(mkdir("@@/d", 0755) == 0 && close(made("@@/d/file")) == 0 && close(made("outside")) == 0);
    fails_with(rename("@@/d/file", "x"), EXDEV);
    fails_with(rename("outside", "@@/x"), EXDEV);
    fails_with(link("outside", "@@/x"), EXDEV);
    must(symlink("d/file", "@@/link") == 0);
    struct stat found;
    must(linkat(AT_FDCWD, "@@/link", AT_FDCWD, "@@/followed", AT_SYMLINK_FOLLOW) == 0);
    must(lstat("@@/followed", &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 2);
    must(linkat(AT_FDCWD, "@@/link", AT_FDCWD, "@@/kept", 0) == 0);
    must(lstat("@@/kept", &found) == 0 && S_ISLNK(found.st_mode));
    /* An open directory is meant, not the one that has its name now. */
    int directory = open("@@/d", O_RDONLY | O_DIRECTORY);
    must(rename("@@/d", "@@/moved") == 0 && mkdir("@@/d", 0755) == 0 && close(made("@@/d/file")) == 0);
    must(linkat(directory, "file", directory, "second", 0) == 0);
    must(access("@@/moved/second", F_OK) == 0);
    fails_with(access("@@/d/second", F_OK), ENOENT);
    must(fchdir(directory) == 0 ? access("second", F_OK) == 0 : errno == ENOENT);
    char bytes[PATH_MAX];
    must(getcwd(bytes, sizeof bytes) != NULL && chdir("/") == 0);
    must(readlink("@@/link", bytes, 3) == 3 && memcmp(bytes, "d/f", 3) == 0);
    fails_with(readlink("@@/link", bytes, 0), EINVAL);
    fails_with(unlink("@@/moved"), EISDIR);
    fails_with(rmdir("@@/moved"), ENOTEMPTY);
    fails_with(mkdir("@@/moved", 0755), EEXIST);
    fails_with(open("@@/moved/file/", O_RDONLY), ENOTDIR);
    fails_with(open("@@/moved", O_RDWR), EISDIR);
    must(realpath("@@/moved/file/..", bytes) == NULL && errno == ENOTDIR);
    fails_with(open("@@/", O_TMPFILE | O_RDWR, 0600), EOPNOTSUPP);
    /* Without a name, a file lives while it is open. */
    int fd = made("@@/unnamed");
    must(unlink("@@/unnamed") == 0 && write(fd, "x", 1) == 1 && fstat(fd, &found) == 0 && found.st_nlink == 0);
}

static void listings(void) {
    must(mkdir("@@/d", 0755) == 0);
    char name[300];
    for (int index = 0; index < 1000; index++) {
        snprintf(name, sizeof name, "@@/d/%d", index);
        must(close(made(name)) == 0);
    }
    DIR *directory = opendir("@@/d");
    must(directory != NULL);
    struct dirent *entry;
    long place = -1;
    char after[256] = "";
    for (int index = 0; (entry = readdir(directory)) != NULL; index++) {
        if (index == 500) place = telldir(directory);
        if (index == 501) strcpy(after, entry->d_name);
    }
    seekdir(directory, place);
    must((entry = readdir(directory)) != NULL && strcmp(entry->d_name, after) == 0);
    rewinddir(directory);
    int count = 0;
    while ((entry = readdir(directory)) != NULL) {
        count++;
        snprintf(name, sizeof name, "@@/d/%s", entry->d_name);
        if (entry->d_name[0] != '.') must(unlink(name) == 0);
    }
    must(count == 1002 && rmdir("@@/d") == 0);
    must(closedir(directory) == 0);
    must(opendir("@@/none") == NULL && errno == ENOENT);
}

static void streams(void) {
    FILE *stream = fopen("@@/f", "w+");
    char buffer[16];
    must(stream != NULL && setvbuf(stream, buffer, _IOFBF, sizeof buffer) == 0);
    must(fputs("hello, world: a line longer than the buffer\n", stream) >= 0);
    must(fseek(stream, 7, SEEK_SET) == 0 && fgetc(stream) == 'w' && ungetc('W', stream) == 'W');
    must(fgetc(stream) == 'W' && fgetc(stream) == 'o' && ftell(stream) == 9);
    must(fflush(stream) == 0 && fileno(stream) >= 3 && ftruncate(fileno(stream), 5) == 0);
    must(fclose(stream) == 0);
    holds("@@/f", "hello");
    must((stream = fopen("@@/f", "a+")) != NULL && fputs("!", stream) >= 0 && fclose(stream) == 0);
    holds("@@/f", "hello!");
    int fd = open("@@/f", O_RDONLY);
    must((stream = fdopen(fd, "r")) != NULL && fgetc(stream) == 'h' && fclose(stream) == 0);
    fails_with(read(fd, buffer, 1), EBADF);
    must(fopen("@@/f", "wx") == NULL && errno == EEXIST);
    must(fopen("@@/f", "q") == NULL && errno == EINVAL);
    fd = open("@@/f", O_RDONLY);
    must(fdopen(fd, "w") == NULL && errno == EINVAL);
    stream = fopen("@@/line", "w");
    setlinebuf(stream);
    must(fputs("now\n", stream) >= 0);
    holds("@@/line", "now\n");
    /* Nobody closes these. */
    for (int index = 0; index < 1100; index++) {
        char name[64];
        snprintf(name, sizeof name, "@@/stream%d", index);
        struct rlimit limit = {4096, 4096};
        setrlimit(RLIMIT_NOFILE, &limit);
        must((stream = fopen(name, "w")) != NULL && fputs("unflushed", stream) >= 0);
    }
}

static void written_in_handler_at_exit(void) {
    int fd = open("@@/exit", O_WRONLY | O_CREAT, 0644);
    must(fd >= 0 && write(fd, "at exit", 7) == 7);
}

static void exit_handler(void) {
    must(atexit(written_in_handler_at_exit) == 0);
    exit(0);
}

static void quick_exit_handler(void) {
    must(at_quick_exit(written_in_handler_at_exit) == 0);
    quick_exit(0);
}

static void aborted(void) {
    int fd = made("@@/f");
    must(write(fd, "synced", 6) == 6 && fsync(fd) == 0 && write(fd, "not", 3) == 3);
    abort();
}

static jmp_buf jumped_to;
static void jump(int signal) {
    (void)signal;
    siglongjmp(jumped_to, 1);
}

/* Nothing is promised to a program that jumps out of a call but that the store is whole, and the program does not hang. */
static void jumps_out(void) {
    int fd = made("@@/f");
    must(write(fd, "synced", 6) == 6 && fsync(fd) == 0);
    if (sigsetjmp(jumped_to, 1) == 0) {
        tick(jump, 20000);
        char *page = calloc(1, PAGE);
        for (long at = 0;; at++) pwrite(fd, page, PAGE, PAGE * (at % 1000 + 1));
    }
    struct itimerval none = {0};
    setitimer(ITIMER_REAL, &none, NULL);
    exit(0);
}

static void start_execl(void) {
    int fd = made("@@/f");
    must(write(fd, "before", 6) == 6 && close(fd) == 0);
    execl("/bin/sh", "sh", "-c", "test \"$(cat @@/f)$1$2$3$4$5$6\" = before123456", "sh", "1", "2", "3", "4", "5", "6", (char *)0);
}

static void start_execlp(void) {
    int fd = made("@@/f");
    must(write(fd, "before", 6) == 6 && close(fd) == 0);
    execlp("cat", "cat", "@@/f", (char *)0);
}

static void start_execle(void) {
    int fd = made("@@/f");
    must(write(fd, "before", 6) == 6 && close(fd) == 0);
    char preload[PATH_MAX], store[PATH_MAX];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", getenv("LD_PRELOAD"));
    snprintf(store, sizeof store, "WEIR_RUN_STORE=%s", getenv("WEIR_RUN_STORE"));
    char *const only[] = {preload, store, "ONLY=this", NULL};
    execle("/bin/sh", "sh", "-c", "test \"$(/bin/cat @@/f)$ONLY$HOME\" = beforethis", (char *)0, only);
}

static void children(void) {
    int fd = made("@@/f");
    must(write(fd, "parent", 6) == 6);
    char *page = mapped(fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        fails_with(read(fd, &byte, 1), EBADF);
        fails_with(write(fd, "x", 1), EBADF);
        fails_with(dup2(fd, 1), EBADF);
        fails_with(open("@@/f", O_RDONLY), EBUSY);
        must(close(fd) == 0);
        fails_with(close(fd), EBADF);
        must(made("of-child") == fd && write(fd, "child", 5) == 5);
        _exit(0);
    }
    ends_well(child);
    holds("of-child", "child");
    page[0] = 'P';
    must(munmap(page, PAGE) == 0);
    child = vfork();
    if (child == 0) {
        close(fd);
        execlp("true", "true", (char *)0);
        _exit(1);
    }
    ends_well(child);
    must(lseek(fd, 0, SEEK_SET) == 0);
    char bytes[6];
    must(read(fd, bytes, 6) == 6 && memcmp(bytes, "Parent", 6) == 0);
    must(close(fd) == 0);
    posix_spawn_file_actions_t actions;
    must(posix_spawn_file_actions_init(&actions) == 0);
    must(posix_spawn_file_actions_addopen(&actions, 1, "copy", O_WRONLY | O_CREAT, 0644) == 0);
    char *arguments[] = {"cat", "@@/f", NULL};
    must(posix_spawnp(&child, "cat", &actions, NULL, arguments, environ) == 0);
    ends_well(child);
    holds("copy", "Parent");
}

static int forked_fd;

static void *write_on(void *argument) {
    (void)argument;
    char *page = calloc(1, PAGE);
    for (long at = 0; !race_ends; at++) {
        must(pwrite(forked_fd, page, PAGE, (at % 200) * PAGE) == PAGE);
        FILE *stream = fopen("@@/stream", "w");
        must(stream != NULL && fputs("x", stream) >= 0 && fclose(stream) == 0);
        char *memory = mapped(forked_fd, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED);
        must(munmap(memory, PAGE) == 0);
    }
    return NULL;
}

static void fork_among_threads(void) {
    forked_fd = made("@@/f");
    pthread_t threads[3];
    for (int index = 0; index < 3; index++) running(write_on, &threads[index], NULL);
    for (int round = 0; round < 100; round++) {
        pid_t child = fork();
        must(child >= 0);
        if (child == 0) {
            if (pwrite(forked_fd, "x", 1, 0) != -1 || errno != EBADF) _exit(1);
            char *allocated = malloc(100000);
            FILE *own = fopen("own", "w");
            if (allocated == NULL || own == NULL || fputs("own", own) < 0 || fclose(own) != 0) _exit(2);
            exit(0);
        }
        ends_well(child);
    }
    race_ends = 1;
    for (int index = 0; index < 3; index++) must(pthread_join(threads[index], NULL) == 0);
}

static void attributes(void) {
    int fd = made("@@/f");
    struct timespec times[2] = {{1000, 5}, {0, UTIME_OMIT}};
    struct stat before, after;
    must(fstat(fd, &before) == 0 && futimens(fd, times) == 0 && fstat(fd, &after) == 0);
    must(after.st_atim.tv_sec == 1000 && after.st_atim.tv_nsec == 5 && after.st_mtim.tv_sec == before.st_mtim.tv_sec);
    times[0].tv_nsec = 1000000000;
    fails_with(utimensat(AT_FDCWD, "@@/f", times, 0), EINVAL);
    struct statx extended;
    must(statx(fd, "", AT_EMPTY_PATH, STATX_ALL, &extended) == 0 && extended.stx_ino == after.st_ino);
    fails_with(fallocate(fd, 0, 0, 0), EINVAL);
    must(posix_fallocate(fd, -1, 5) == EINVAL);
    must(fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 100000) == 0 && fstat(fd, &after) == 0 && after.st_size == 0);
    must(posix_fallocate(fd, 0, 100000) == 0 && fstat(fd, &after) == 0 && after.st_size == 100000);
    fails_with(ftruncate(fd, -1), EINVAL);
    fails_with(ftruncate(open("@@/f", O_RDONLY), 1), EINVAL);
    must(chmod("@@/f", 0) == 0 && fstat(fd, &after) == 0 && (after.st_mode & 07777) == 0);
    must(fcntl(fd, F_SETFL, O_APPEND) == 0 && (fcntl(fd, F_GETFL) & (O_APPEND | O_ACCMODE)) == (O_APPEND | O_RDWR));
    must(pwrite(fd, "x", 1, 0) == 1 && fstat(fd, &after) == 0 && after.st_size == 100001);
    mode_t mask = umask(077);
    must(close(made("@@/masked")) == 0 && stat("@@/masked", &after) == 0 && (after.st_mode & 0777) == 0600);
    umask(mask);
}

static int send_fd(int socket, int fd) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sendmsg(socket, &message, 0);
}

/* A descriptor that was sent is useless at its new place, and says so. */
static void sent_descriptor(void) {
    int pair[2], fd = made("@@/f");
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    if (send_fd(pair[0], fd) == -1) return;
    char space[CMSG_SPACE(sizeof(int))], byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    must(recvmsg(pair[1], &message, 0) == 1);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    fails_with(write(received, "x", 1), EBADF);
    must(close(received) == 0);
}

static int by_name(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static int visits, visited_files;

static int visit(const char *path, const struct stat *found, int type, struct FTW *place) {
    must(path[place->base - 1] == '/' || place->base == 0 || place->level == 0);
    visits++;
    if (type == FTW_F && S_ISREG(found->st_mode)) visited_files++;
    /* A call of the visitor is served. */
    struct stat again;
    must(lstat(path, &again) == 0 && again.st_ino == found->st_ino);
    return 0;
}

static int remove_visited(const char *path, const struct stat *found, int type, struct FTW *place) {
    (void)found, (void)type, (void)place;
    return remove(path);
}

static void walks(void) {
    must(mkdir("@@/d", 0755) == 0 && mkdir("@@/d/b", 0755) == 0 && close(made("@@/d/b/c")) == 0);
    must(close(made("@@/d/a")) == 0 && symlink("a", "@@/d/link") == 0);
    struct dirent **found;
    must(scandir("@@/d", &found, by_name, alphasort) == 3);
    must(strcmp(found[0]->d_name, "a") == 0 && strcmp(found[2]->d_name, "link") == 0);
    glob_t globbed;
    must(glob("@@/d/*", 0, NULL, &globbed) == 0 && globbed.gl_pathc == 3 && strcmp(globbed.gl_pathv[1], "@@/d/b") == 0);
    globfree(&globbed);
    must(nftw("@@/d", visit, 10, FTW_PHYS) == 0 && visits == 5 && visited_files == 2);
    must(nftw("@@/d", remove_visited, 10, FTW_PHYS | FTW_DEPTH) == 0);
    fails_with(access("@@/d", F_OK), ENOENT);
}

static void unwelcome_message(void) {
    must(close(2) == 0 && made("data") == 2);
    must(chdir("@@") == 0);
    fails_with(execlp("true", "true", (char *)0), EOPNOTSUPP);
    must(chdir("/") == 0);
    struct stat found;
    must(fstat(2, &found) == 0 && found.st_size == 0);
}

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(void); } cases[] = {
    CASE(failed_chdir), CASE(unserved_relative_path), CASE(renamed_working_directory), CASE(closed_unseen),
    CASE(closed_stream), CASE(dev_fd), CASE(duplicates), CASE(all_closed), CASE(many_descriptors),
    CASE(handler_writes), CASE(handler_closes), CASE(appended_lines), CASE(vectors), CASE(copied_bytes),
    CASE(mapping_made_writable), CASE(mapping_remapped), CASE(mapping_and_writes), CASE(mapping_that_comes_and_goes),
    CASE(mapping_of_a_full_store), CASE(mapping_truncated), CASE(mapping_before_a_kill), CASE(locks), CASE(locks_wait),
    CASE(names), CASE(listings), CASE(streams), CASE(exit_handler), CASE(quick_exit_handler), CASE(aborted),
    CASE(jumps_out), CASE(start_execl), CASE(start_execlp), CASE(start_execle), CASE(children),
    CASE(fork_among_threads), CASE(attributes), CASE(sent_descriptor), CASE(walks), CASE(unwelcome_message),
};

int main(int count, char **arguments) {
    for (size_t index = 0; count == 2 && index < sizeof cases / sizeof *cases; index++)
        if (strcmp(cases[index].name, arguments[1]) == 0) {
            cases[index].run();
            return 0;
        }
    fprintf(stderr, "misuse: no such case\n");
    return 2;
}
