/* A program drawn from a seed: processes with threads that share descriptors and names, and do to them whatever comes up.
   generated DIR SEED OPERATIONS */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { PROCESSES = 3, THREADS = 2, SHARED = 4 };

static int shared[SHARED], tokens[2];
static int operations;

struct thread { uint64_t state; };

static uint32_t below(struct thread *own, uint32_t limit) {
    own->state ^= own->state << 13;
    own->state ^= own->state >> 7;
    own->state ^= own->state << 17;
    return (own->state >> 33) % limit;
}

/* One of few names, so that they meet: in the working directory, in one of two directories, or in a deeper one. */
static char *name(struct thread *own, char *into) {
    static const char *const dirs[] = {"", "", "d0/", "d1/", "d0/e/"};
    sprintf(into, "%sn%u", dirs[below(own, 5)], below(own, 5));
    return into;
}

static char *directory(struct thread *own, char *into) {
    static const char *const dirs[] = {"d0", "d1", "d0/e", "d1/n1", "n2"};
    sprintf(into, "%s", dirs[below(own, 5)]);
    return into;
}

static void on_file(struct thread *own, int fd) {
    static _Thread_local char bytes[9000];
    size_t length = 1 + below(own, 9000);
    off_t at = below(own, 20000);
    struct stat found;
    switch (below(own, 14)) {
    case 0: case 1: (void)!write(fd, bytes, length); break;
    case 2: case 3: (void)!read(fd, bytes, length); break;
    case 4: case 5: (void)!pwrite(fd, bytes, length, at); break;
    case 6: case 7: (void)!pread(fd, bytes, length, at); break;
    case 8: lseek(fd, at, below(own, 2) ? SEEK_SET : SEEK_END); break;
    case 9: fstat(fd, &found); break;
    case 10: (void)!ftruncate(fd, at); break;
    case 11: fdatasync(fd); break;
    case 12: (void)!posix_fallocate(fd, at, length); break;
    default: lseek(fd, 0, SEEK_CUR); break;
    }
}

static void on_lock(struct thread *own, int fd) {
    short kinds[] = {F_RDLCK, F_WRLCK, F_UNLCK};
    struct flock lock = {.l_type = kinds[below(own, 3)], .l_whence = SEEK_SET, .l_start = below(own, 4),
                         .l_len = 1 + below(own, 3)};
    switch (below(own, 4)) {
    case 0: case 1: fcntl(fd, F_SETLK, &lock); break;
    case 2: flock(fd, (below(own, 2) ? LOCK_SH : LOCK_EX) | LOCK_NB); break;
    default: flock(fd, LOCK_UN); break;
    }
}

static void on_open(struct thread *own) {
    static const int flags[] = {O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_CREAT | O_EXCL, O_WRONLY | O_CREAT | O_TRUNC,
                                O_RDWR | O_APPEND | O_CREAT, O_RDONLY | O_NOFOLLOW, O_RDONLY | O_DIRECTORY};
    char path[64], other[64];
    int fd = open(name(own, path), flags[below(own, 7)], 0644);
    if (fd < 0) return;
    int copy = below(own, 4) ? -1 : dup(fd);
    for (uint32_t left = below(own, 4); left > 0; left--) on_file(own, fd);
    if (!below(own, 3)) on_lock(own, fd);
    if (!below(own, 6)) fcntl(fd, F_SETFL, below(own, 2) ? O_APPEND : 0);
    close(fd);
    if (copy >= 0) {
        on_file(own, copy);
        close(copy);
    }
    (void)other;
}

static void on_nameless(struct thread *own) {
    char path[64];
    int fd = open(".", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) return;
    on_file(own, fd);
    linkat(fd, "", AT_FDCWD, name(own, path), AT_EMPTY_PATH);
    on_file(own, fd);
    close(fd);
}

static void on_name(struct thread *own) {
    char a[64], b[64], bytes[4096];
    struct stat found;
    switch (below(own, 16)) {
    case 0: case 1: rename(name(own, a), name(own, b)); break;
    case 2: link(name(own, a), name(own, b)); break;
    case 3: case 4: unlink(name(own, a)); break;
    case 5: symlink(name(own, a), name(own, b)); break;
    case 6: case 7: stat(name(own, a), &found); break;
    case 8: lstat(name(own, a), &found); break;
    case 9: (void)!readlink(name(own, a), bytes, sizeof bytes); break;
    case 10: mkdir(directory(own, a), 0755); break;
    case 11: rmdir(directory(own, a)); break;
    case 12: rename(directory(own, a), directory(own, b)); break;
    case 13: chmod(name(own, a), 0600 + below(own, 64)); break;
    case 14: (void)!truncate(name(own, a), below(own, 20000)); break;
    default: renameat2(AT_FDCWD, name(own, a), AT_FDCWD, name(own, b), 1 + below(own, 2)); break;
    }
}

static void on_attribute(struct thread *own) {
    char path[64], bytes[64];
    switch (below(own, 4)) {
    case 0: setxattr(name(own, path), "user.one", bytes, below(own, 64), below(own, 3)); break;
    case 1: getxattr(name(own, path), "user.one", bytes, sizeof bytes); break;
    case 2: listxattr(name(own, path), bytes, sizeof bytes); break;
    default: removexattr(name(own, path), "user.one"); break;
    }
}

static void *run(void *argument) {
    struct thread *own = argument;
    char token = 0;
    for (int left = operations; left > 0; left--) {
        switch (below(own, 20)) {
        case 0: case 1: case 2: case 3: on_file(own, shared[below(own, SHARED)]); break;
        case 4: case 5: on_lock(own, shared[below(own, SHARED)]); break;
        case 6: case 7: case 8: case 9: on_open(own); break;
        case 10: on_nameless(own); break;
        case 11: on_attribute(own); break;
        /* A token for each taken back: nobody waits for ever. */
        case 12:
            (void)!write(tokens[1], &token, 1);
            (void)!read(tokens[0], &token, 1);
            break;
        default: on_name(own); break;
        }
    }
    return NULL;
}

static void process(uint64_t seed, int number) {
    struct thread own[THREADS];
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        own[at].state = (seed + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(number * THREADS + at + 1) * 0xd1342543de82ef95u;
        pthread_create(&threads[at], NULL, run, &own[at]);
    }
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
}

int main(int count, char **arguments) {
    if (count != 4 || chdir(arguments[1]) != 0) return 2;
    uint64_t seed = strtoull(arguments[2], NULL, 10);
    operations = atoi(arguments[3]);
    mkdir("d0", 0755);
    mkdir("d1", 0755);
    shared[0] = open("n0", O_RDWR | O_CREAT, 0644);
    shared[1] = open("n0", O_RDWR | O_CREAT | O_APPEND, 0644);
    shared[2] = open("n1", O_RDWR | O_CREAT, 0644);
    shared[3] = open("d0/n2", O_RDWR | O_CREAT, 0644);
    if (pipe(tokens) != 0) return 1;
    for (int number = 1; number < PROCESSES; number++) {
        if (fork() == 0) {
            process(seed, number);
            exit(0);
        }
    }
    process(seed, 0);
    while (wait(NULL) > 0) {}
    return 0;
}
