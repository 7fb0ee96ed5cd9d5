/* What a program in C does wrong, on a store: see c.rs. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weir.h>

#define IS(call, expected) is(#call, (long)(call) == -1 ? errno : 0, expected)
#define IS_NULL(call, expected) is(#call, (call) == NULL ? errno : 0, expected)
#define OK(call) is(#call, (long)(call) == 0 ? 0 : errno, 0)

static void is(const char *call, int found, int expected) {
    if (found != expected) {
        fprintf(stderr, "%s: errno %d, not %d (%s)\n", call, found, expected, weir_error());
        exit(1);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    char bytes[16] = "0123456789";
    struct stat found;
    weir_options options = {.flags = 1 << 30};
    IS_NULL(weir_open_store(argv[1], &options), EINVAL);
    IS_NULL(weir_open_store(NULL, NULL), EFAULT);
    IS_NULL(weir_open_store("/nothing/there", NULL), ENOENT);
    if (strstr(weir_error(), "; check the path, and that its file system is mounted: `findmnt`;") == NULL)
        is(weir_error(), 1, 0);

    weir_store *store = weir_open_store(argv[1], NULL);
    if (store == NULL)
        is(weir_error(), errno, 0);
    IS_NULL(weir_open_store(argv[1], NULL), EBUSY);
    weir_file *file = weir_open(store, "/f", O_RDWR | O_CREAT, 0666);
    if (weir_write(file, bytes, 10) != 10)
        is("write", errno, 0);

    /* Null, and lengths. */
    IS(weir_read(file, NULL, 1), EFAULT);
    IS(weir_read(file, bytes, (size_t)SSIZE_MAX + 1), EINVAL);
    IS(weir_write(file, bytes, SIZE_MAX), EINVAL);
    IS(weir_write(file, NULL, 1), EFAULT);
    OK(weir_pread(file, NULL, 0, 0));
    IS(weir_pread(file, bytes, 1, -1), EINVAL);
    IS(weir_read(NULL, bytes, 1), EFAULT);
    IS(weir_fstat(file, NULL), EFAULT);
    IS(weir_stat(store, NULL, &found), EFAULT);
    IS(weir_rename(store, "/f", NULL), EFAULT);
    IS(weir_setxattr(store, "/f", "user.a", NULL, 1, 0), EFAULT);
    IS(weir_lseek(file, 0, 77), EINVAL);
    IS(weir_access(store, "/f", 64), EINVAL);

    /* Attributes. */
    OK(weir_setxattr(store, "/f", "user.a", "value", 5, 0));
    IS(weir_getxattr(store, "/f", "user.a", bytes, 2), ERANGE);
    if (weir_fgetxattr(file, "user.a", NULL, 0) != 5 || weir_fgetxattr(file, "user.a", bytes, sizeof bytes) != 5)
        is("getxattr", errno, 0);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000, .tv_nsec = 7}};
    OK(weir_futimens(file, times));
    OK(weir_fchmod(file, 0640));
    OK(weir_fstat(file, &found));
    if (found.st_mtim.tv_sec != 1000 || found.st_mtim.tv_nsec != 7 || found.st_mode != (S_IFREG | 0640) || found.st_size != 10)
        is("fstat", 1, 0);

    /* Several changes: all of them or none. */
    weir_change changes[65] = {
        {.kind = WEIR_WRITE, .file = file, .bytes = "ab", .length = 2, .offset = 8},
        {.kind = WEIR_RENAME, .path = "/f", .new_path = "/g"},
        {.kind = WEIR_REMOVE, .path = "/absent"},
    };
    IS(weir_apply(store, changes, 3), ENOENT);
    if (strcmp(weir_error(), "weir_apply: changes[2]: No such file or directory") != 0)
        is(weir_error(), 1, 0);
    changes[2].kind = 77;
    IS(weir_apply(store, changes, 3), EINVAL);
    IS(weir_apply(store, NULL, 1), EFAULT);
    IS(weir_apply(store, changes, SIZE_MAX), EINVAL);
    changes[0].bytes = NULL;
    IS(weir_apply(store, changes, 1), EFAULT);
    if (weir_pread(file, bytes, 16, 0) != 10 || memcmp(bytes, "0123456789", 10) != 0 || weir_stat(store, "/f", &found) != 0)
        is("nothing has changed", 1, 0);
    changes[0].bytes = "ab";
    OK(weir_apply(store, changes, 2));
    if (weir_pread(file, bytes, 16, 0) != 10 || memcmp(bytes, "01234567ab", 10) != 0 || weir_stat(store, "/g", &found) != 0)
        is("both have changed", 1, 0);
    for (int at = 0; at < 65; at++)
        changes[at] = changes[0];
    IS(weir_apply(store, changes, 65), EFBIG);
    OK(weir_rename(store, "/g", "/f"));

    /* A handle of another kind. */
    IS(weir_commit((weir_store *)file), EBADF);

    /* A child does not touch what its parent has opened. */
    pid_t child = fork();
    if (child == 0) {
        IS(weir_read(file, bytes, 1), EBADF);
        IS(weir_close_store(store), EBADF);
        exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        is("the child", 1, 0);

    /* After close. */
    weir_dir *listing = weir_opendir(store, "/");
    weir_file *second = weir_open(store, "/f", O_RDONLY, 0);
    OK(weir_close(file));
    IS(weir_close(file), EBADF);
    IS(weir_read(file, bytes, 1), EBADF);
    if (weir_read(second, bytes, 1) != 1)
        is("another handle of the file", errno, 0);
    OK(weir_close_store(store));
    IS(weir_close_store(store), EBADF);
    IS(weir_mkdir(store, "/d", 0777), EBADF);
    IS(weir_pread(second, bytes, 1, 0), EBADF);
    IS(weir_close(second), EBADF);
    IS_NULL(weir_readdir(listing), EBADF);

    /* The store is free again. Then a wild pointer ends the program. */
    store = weir_open_store(argv[1], NULL);
    file = store == NULL ? NULL : weir_open(store, "/synced", O_WRONLY | O_CREAT, 0666);
    if (file == NULL || weir_write(file, "kept", 4) != 4 || weir_fsync(file) != 0)
        is(weir_error(), errno, 0);
    puts("done");
    fflush(stdout);
    weir_write(file, (void *)0xdead0000, 100);
    return 0;
}
