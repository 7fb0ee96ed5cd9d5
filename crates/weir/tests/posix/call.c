/* call: calls that safe Rust has no words for, or that another user must make.
 *
 *   call handle FILE          says the file's handle, as one word, as an NFS server names it
 *   call open DIR HANDLE      opens it in the file system that DIR lies on; says its path, or `?` where the kernel knows
 *                             none, and then what is in it, if it is a regular file
 *   call whiteout FROM TO     renameat2 with RENAME_WHITEOUT
 *   call copy FROM TO         copy_file_range of up to 4096 bytes to the start of TO
 *   call send FROM TO         the same with sendfile
 *
 * What fails is said as `errno NUMBER`, on standard error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

union handle {
    struct file_handle head;
    unsigned char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
};

static int failed(void) {
    fprintf(stderr, "errno %d\n", errno);
    return 1;
}

static int name_it(const char *path) {
    union handle handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount;
    if (name_to_handle_at(AT_FDCWD, path, &handle.head, &mount, 0) != 0) return failed();
    printf("%d:", handle.head.handle_type);
    for (unsigned at = 0; at < handle.head.handle_bytes; at++) printf("%02x", handle.head.f_handle[at]);
    printf("\n");
    return 0;
}

static int open_it(const char *dir, const char *word) {
    union handle handle = {0};
    char *hex;
    handle.head.handle_type = (int)strtol(word, &hex, 10);
    for (hex++; hex[0] && hex[1]; hex += 2) {
        unsigned byte;
        sscanf(hex, "%2x", &byte);
        handle.head.f_handle[handle.head.handle_bytes++] = (unsigned char)byte;
    }
    int mount = open(dir, O_RDONLY | O_DIRECTORY);
    if (mount < 0) return failed();
    int file = open_by_handle_at(mount, &handle.head, O_RDONLY);
    if (file < 0) return failed();
    char link[64], path[4096], bytes[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t len = readlink(link, path, sizeof path);
    if (len < 0) return failed();
    int is_path = len > 1 && path[0] == '/';
    printf("%.*s\n", is_path ? (int)len : 1, is_path ? path : "?");
    struct stat found;
    if (fstat(file, &found) != 0) return failed();
    while (S_ISREG(found.st_mode) && (len = read(file, bytes, sizeof bytes)) != 0) {
        if (len < 0) return failed();
        fwrite(bytes, 1, len, stdout);
    }
    return 0;
}

static int copy(const char *from, const char *to, int sends) {
    int source = open(from, O_RDONLY), target = open(to, O_WRONLY);
    if (source < 0 || target < 0) return failed();
    ssize_t done = sends ? sendfile(target, source, NULL, 4096) : copy_file_range(source, NULL, target, NULL, 4096, 0);
    return done > 0 ? 0 : failed();
}

int main(int count, char **arg) {
    if (count == 3 && strcmp(arg[1], "handle") == 0) return name_it(arg[2]);
    if (count == 4 && strcmp(arg[1], "open") == 0) return open_it(arg[2], arg[3]);
    if (count == 4 && strcmp(arg[1], "whiteout") == 0)
        return renameat2(AT_FDCWD, arg[2], AT_FDCWD, arg[3], RENAME_WHITEOUT) == 0 ? 0 : failed();
    if (count == 4 && strcmp(arg[1], "copy") == 0) return copy(arg[2], arg[3], 0);
    if (count == 4 && strcmp(arg[1], "send") == 0) return copy(arg[2], arg[3], 1);
    fprintf(stderr, "call: see the top of call.c\n");
    return 2;
}
