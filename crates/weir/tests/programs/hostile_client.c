/* hostile_client ROLE DIRECTORY [COUNT]: does one thing without restraint until it is killed. Prints "ready" once there is
 * something to kill it in the middle of. Exits with 1 and a message when a call fails that must work.
 *   open     COUNT files that are open at once, half of them without a name any more
 *   lock     COUNT byte ranges of one file, and COUNT / 100 whole files
 *   lookup   COUNT names that do not exist, over and over
 *   sync     COUNT threads that write and fsync
 *   write    requests of 1 MiB whose bytes are all alike
 *   fsync    a page and an fsync
 *   rename   a file of 64 KiB of one letter over another
 *   mmap     a shared mapping of 4 MiB, stored into and synced
 *   huge     256 MiB written by one call, and read by one call; ends by itself */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define MIB (1L << 20)

static const char *directory;
static long count;

static void must(int worked, const char *what) {
    if (!worked) {
        perror(what);
        exit(1);
    }
}

static const char *name(char *into, const char *stem, long number) {
    snprintf(into, 4096, "%s/%s-%d-%ld", directory, stem, (int)getpid(), number);
    return into;
}

static int made(const char *stem, long number) {
    char path[4096];
    int file = open(name(path, stem, number), O_RDWR | O_CREAT, 0600);
    must(file >= 0, path);
    return file;
}

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static void *filled(size_t len, int letter) {
    void *bytes = malloc(len);
    must(bytes != NULL, "malloc");
    return memset(bytes, letter, len);
}

/* As many processes as a process may have files, all of which die with the first. */
static void open_everything(void) {
    struct rlimit limit;
    must(getrlimit(RLIMIT_NOFILE, &limit) == 0, "getrlimit");
    long each = (long)limit.rlim_cur - 10;
    if (count > each) {
        int line[2];
        char byte;
        must(pipe(line) == 0, "pipe");
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
            must(dup2(line[1], 1) == 1 && close(line[0]) == 0 && close(line[1]) == 0, "pipe");
            count -= each;
            open_everything();
        }
        close(line[1]);
        must(read(line[0], &byte, 1) == 1, "a process of its own");
        close(line[0]);
        count = each;
    }
    for (long at = 0; at < count; at++) {
        char path[4096];
        int file = made("open", at);
        if (at % 16 == 0)
            must(pwrite(file, "bytes", 5, 3 * at) == 5, "pwrite");
        if (at % 2 == 0)
            must(unlink(name(path, "open", at)) == 0, "unlink");
    }
    ready();
    pause();
}

static void lock_everything(void) {
    int file = open("locked", O_RDWR | O_CREAT, 0600);
    must(file >= 0, "locked");
    for (long at = 0; at < count; at++) {
        /* Apart from each other, or they would be one. */
        struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * at, .l_len = 1};
        must(fcntl(file, F_SETLK, &range) == 0, "F_SETLK");
        if (at % 100 == 0) {
            char path[64];
            snprintf(path, sizeof path, "locked-%ld", at / 100);
            int whole = open(path, O_RDWR | O_CREAT, 0600);
            must(whole >= 0 && flock(whole, LOCK_EX | LOCK_NB) == 0, path);
        }
    }
    ready();
    pause();
}

static void look_up(void) {
    for (;;) {
        for (long at = 0; at < count; at++) {
            char path[4096];
            struct stat found;
            must(stat(name(path, "nothing", at), &found) != 0 && errno == ENOENT, "stat");
        }
        ready();
    }
}

static void *write_and_sync(void *number) {
    char page[512];
    int file = made("sync", (long)number % 64);
    memset(page, 's', sizeof page);
    for (long at = 0;; at++) {
        must(pwrite(file, page, sizeof page, 512 * ((long)number / 64)) == sizeof page, "pwrite");
        must(fsync(file) == 0, "fsync");
    }
    return NULL;
}

static void sync_everywhere(void) {
    pthread_attr_t small;
    must(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0, "attributes");
    for (long at = 0; at < count; at++) {
        pthread_t thread;
        must(pthread_create(&thread, &small, write_and_sync, (void *)at) == 0, "pthread_create");
    }
    ready();
    pause();
}

static void write_much(void) {
    int file = made("write", 0);
    ready();
    for (long at = 0;; at++) {
        void *bytes = filled(MIB, 'a' + at % 26);
        must(pwrite(file, bytes, MIB, at % 16 * MIB) == MIB, "pwrite");
        free(bytes);
    }
}

static void sync_much(void) {
    int file = made("fsync", 0);
    ready();
    for (long at = 0;; at++) {
        must(pwrite(file, "page", 4, at % 1000 * 4096) == 4, "pwrite");
        must(fsync(file) == 0, "fsync");
    }
}

static void rename_much(void) {
    char from[4096], to[4096];
    snprintf(to, sizeof to, "%s/renamed", directory);
    ready();
    for (long at = 0;; at++) {
        void *bytes = filled(64 << 10, 'a' + at % 26);
        int file = made("rename", 0);
        must(write(file, bytes, 64 << 10) == 64 << 10, "write");
        close(file);
        must(rename(name(from, "rename", 0), to) == 0, "rename");
        free(bytes);
    }
}

static void map_much(void) {
    int file = made("mmap", 0);
    must(ftruncate(file, 4 * MIB) == 0, "ftruncate");
    char *bytes = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(bytes != MAP_FAILED, "mmap");
    ready();
    for (long at = 0;; at++) {
        memset(bytes + at % 4 * MIB, 'a' + at % 26, MIB);
        must(msync(bytes, 4 * MIB, at % 2 ? MS_SYNC : MS_ASYNC) == 0, "msync");
    }
}

static void be_huge(void) {
    static struct iovec vector[256];
    void *bytes = filled(MIB, 'h');
    for (int at = 0; at < 256; at++)
        vector[at] = (struct iovec){bytes, MIB};
    int file = made("huge", 0);
    must(pwritev(file, vector, 256, 0) == 256 * MIB, "pwritev");
    must(preadv(file, vector, 256, 0) == 256 * MIB, "preadv");
    must(((char *)bytes)[MIB - 1] == 'h', "what was read");
    must(ftruncate(file, 0) == 0, "ftruncate");
    ready();
}

int main(int words, char **word) {
    static const struct {
        const char *name;
        void (*play)(void);
    } roles[] = {{"open", open_everything}, {"lock", lock_everything}, {"lookup", look_up},
                 {"sync", sync_everywhere}, {"write", write_much},     {"fsync", sync_much},
                 {"rename", rename_much},   {"mmap", map_much},        {"huge", be_huge}};
    if (words < 3)
        return 2;
    directory = word[2];
    count = words > 3 ? atol(word[3]) : 0;
    must(chdir(directory) == 0, directory);
    for (size_t at = 0; at < sizeof roles / sizeof *roles; at++)
        if (strcmp(roles[at].name, word[1]) == 0) {
            roles[at].play();
            return 0;
        }
    return 2;
}
