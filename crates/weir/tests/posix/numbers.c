/* Makes each system call that leads to a request with the ends of its numbers' types, in the current directory. What a call answers
 * does not matter; that the mount still answers does. Prints how many calls were made, or the first after which the mount was gone. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

static const int64_t ends[] = {
    0, 1, -1, 2, 4095, 4096, 4097, INT32_MAX, INT32_MIN, UINT32_MAX,
    (1LL << 47) - 1, 1LL << 47, (1LL << 47) + 1, INT64_MAX - 1, INT64_MAX, INT64_MIN, INT64_MIN + 1,
};
#define EACH(x) for (size_t i_##x = 0, once_##x = 1; i_##x < sizeof ends / sizeof *ends; i_##x++, once_##x = 1) \
  for (int64_t x = ends[i_##x]; once_##x; once_##x = 0)

static char buffer[1 << 20];
static long calls;

/* Ends the program if the mount is gone. */
static long made(const char *what, long answer) {
  struct stat found;
  int error = errno;
  calls++;
  if (answer == -1 && (error == ENOTCONN || error == ECONNABORTED || error == EIO || error == ENOTRECOVERABLE)) {
    printf("%s: %s\n", what, strerror(error));
    exit(1);
  }
  if (calls % 64 == 0 && stat(".", &found) != 0) {
    printf("after %s: %s\n", what, strerror(errno));
    exit(1);
  }
  return answer;
}

static int fresh(const char *name) {
  unlink(name);
  int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (file < 0 || write(file, buffer, 10000) != 10000) {
    printf("no new file: %s\n", strerror(errno));
    exit(1);
  }
  return file;
}

static void times(void) {
  static const int64_t nanos[] = {0, 1, 999999999, 1000000000, -1, INT64_MIN, INT64_MAX, UTIME_NOW, UTIME_OMIT};
  int file = fresh("times");
  EACH(seconds) for (size_t i = 0; i < sizeof nanos / sizeof *nanos; i++) {
    int64_t one[4] = {seconds, nanos[i], 0, 0}, other[4] = {0, UTIME_OMIT, seconds, nanos[i]};
    int64_t both[4] = {seconds, nanos[i], -seconds - 1, nanos[i]};
    made("utimensat", syscall(SYS_utimensat, AT_FDCWD, "times", one, 0));
    made("utimensat", syscall(SYS_utimensat, file, 0, other, 0));
    made("utimensat", syscall(SYS_utimensat, AT_FDCWD, "times", both, AT_SYMLINK_NOFOLLOW));
  }
  close(file);
}

static void sizes(void) {
  int file = fresh("sizes");
  EACH(size) {
    made("ftruncate", syscall(SYS_ftruncate, file, size));
    made("truncate", syscall(SYS_truncate, "sizes", size));
  }
  close(file);
}

static void bytes(void) {
  static const int64_t lengths[] = {0, 1, 4096, 65536};
  int file = fresh("bytes");
  EACH(offset) for (size_t i = 0; i < 4; i++) {
    made("pread", syscall(SYS_pread64, file, buffer, lengths[i], offset));
    made("pwrite", syscall(SYS_pwrite64, file, buffer, lengths[i], offset));
    EACH(flags) {
      struct iovec part = {buffer, lengths[i]};
      made("preadv2", syscall(SYS_preadv2, file, &part, 1, offset, offset >> 32, (int)flags));
    }
  }
  EACH(flags) {
    struct iovec part = {buffer, 100};
    made("pwritev2", syscall(SYS_pwritev2, file, &part, 1, 0, 0, (int)flags));
  }
  /* A length that no buffer has: as much as there is, or an error. */
  ftruncate(file, 5000);
  EACH(length) {
    made("pread", syscall(SYS_pread64, file, buffer, length, 0));
    made("readahead", syscall(SYS_readahead, file, 0, length));
  }
  EACH(offset) {
    made("readahead", syscall(SYS_readahead, file, offset, 4096));
    made("sync_file_range", syscall(SYS_sync_file_range, file, offset, 4096, 7));
    made("posix_fadvise", syscall(SYS_fadvise64, file, offset, 4096, POSIX_FADV_WILLNEED));
    void *map = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    made("mmap", map == MAP_FAILED ? -1 : 0);
    if (map != MAP_FAILED) munmap(map, 4096);
  }
  close(file);
}

static void places(void) {
  int file = fresh("places");
  for (int whence = 0; whence <= 5; whence++) EACH(offset) {
    made("lseek", syscall(SYS_lseek, file, offset, whence));
    made("read", syscall(SYS_read, file, buffer, 10));
  }
  EACH(whence) made("lseek", syscall(SYS_lseek, file, 0, (int)whence));
  ftruncate(file, 1LL << 47);
  EACH(offset) {
    made("lseek", syscall(SYS_lseek, file, offset, SEEK_DATA));
    made("lseek", syscall(SYS_lseek, file, offset, SEEK_HOLE));
  }
  close(file);
}

static void space(void) {
  static const int modes[] = {0, 1, 2, 3, 4, 5, 8, 16, 17, 32, 64, 128, 0x7f, -1, INT_MAX, INT_MIN};
  int file = fresh("space");
  EACH(offset) EACH(length) for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
    made("fallocate", syscall(SYS_fallocate, file, modes[i], offset, length));
  close(file);
}

static void copies(void) {
  static const int64_t some[] = {
      0, 1, -1, 4096, (1LL << 47) - 4096, 1LL << 47, INT64_MAX, INT64_MAX - 4095, INT64_MIN};
  const size_t count = sizeof some / sizeof *some;
  int from = fresh("from"), to = fresh("to");
  for (size_t i = 0; i < count; i++) for (size_t j = 0; j < count; j++) for (size_t k = 0; k < count; k++) {
    int64_t here = some[i], there = some[j];
    made("copy_file_range", syscall(SYS_copy_file_range, from, &here, to, &there, some[k], 0));
    here = some[i], there = some[j];
    made("copy_file_range", syscall(SYS_copy_file_range, from, &here, from, &there, some[k], 0));
    ftruncate(from, 10000);
  }
  EACH(flags) {
    int64_t here = 0, there = 0;
    made("copy_file_range", syscall(SYS_copy_file_range, from, &here, to, &there, 1, (unsigned)flags));
  }
  EACH(offset) {
    lseek(to, 0, SEEK_SET);
    made("sendfile", syscall(SYS_sendfile, to, from, &offset, 5000));
    offset = 0;
  }
  close(from);
  close(to);
}

static void attributes(void) {
  static const int64_t lengths[] = {0, 1, 255, 4096, 65535, 65536, 65537, -1, INT32_MAX, INT64_MIN};
  static const char *const names[] = {"user.x", "security.capability", "trusted.y", "system.posix_acl_access", "user.", "nothing"};
  close(fresh("attributes"));
  for (size_t name = 0; name < 6; name++) {
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) EACH(flags)
      made("setxattr", syscall(SYS_setxattr, "attributes", names[name], buffer, lengths[i], (int)flags));
    EACH(size) made("getxattr", syscall(SYS_getxattr, "attributes", names[name], buffer, size));
    made("removexattr", syscall(SYS_removexattr, "attributes", names[name]));
  }
  EACH(size) made("listxattr", syscall(SYS_listxattr, "attributes", buffer, size));
}

static void owners_and_modes(void) {
  close(fresh("owned"));
  EACH(uid) EACH(gid) made("chown", syscall(SYS_fchownat, AT_FDCWD, "owned", (uid_t)uid, (gid_t)gid, 0));
  EACH(mode) {
    made("chmod", syscall(SYS_fchmodat, AT_FDCWD, "owned", (mode_t)mode));
    made("mkdir", syscall(SYS_mkdirat, AT_FDCWD, "directory", (mode_t)mode));
    made("rmdir", syscall(SYS_unlinkat, AT_FDCWD, "directory", AT_REMOVEDIR));
    int file = made("open", syscall(SYS_openat, AT_FDCWD, "opened", O_CREAT | O_RDWR, (mode_t)mode));
    if (file >= 0) close(file);
    made("unlink", syscall(SYS_unlinkat, AT_FDCWD, "opened", 0));
    file = made("open", syscall(SYS_openat, AT_FDCWD, "opened", (int)mode | O_NONBLOCK | O_CREAT, 0600));
    if (file >= 0) close(file);
    made("unlink", syscall(SYS_unlinkat, AT_FDCWD, "opened", 0));
    made("umask", syscall(SYS_umask, (mode_t)mode));
    made("access", syscall(SYS_faccessat, AT_FDCWD, "owned", (int)mode));
  }
  umask(022);
  EACH(device) for (int kind = 0; kind < 16; kind++) {
    made("mknod", syscall(SYS_mknodat, AT_FDCWD, "node", kind << 12 | 0644, (unsigned)device));
    made("unlink", syscall(SYS_unlinkat, AT_FDCWD, "node", 0));
  }
}

static void names(void) {
  static char name[5000];
  static const size_t lengths[] = {0, 1, 254, 255, 256, 1023, 1024, 1025, 4094, 4095, 4096};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    memset(name, 'n', lengths[i]);
    name[lengths[i]] = 0;
    made("mkdir", syscall(SYS_mkdirat, AT_FDCWD, name, 0755));
    made("rmdir", syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR));
    made("symlink", syscall(SYS_symlinkat, name, AT_FDCWD, "link"));
    EACH(size) made("readlink", syscall(SYS_readlinkat, AT_FDCWD, "link", buffer, (int)size));
    made("unlink", syscall(SYS_unlinkat, AT_FDCWD, "link", 0));
  }
  for (int64_t flags = 0; flags < 16; flags++) {
    close(fresh("old")), close(fresh("new"));
    made("renameat2", syscall(SYS_renameat2, AT_FDCWD, "old", AT_FDCWD, "new", (unsigned)flags));
  }
  EACH(flags) {
    close(fresh("old"));
    made("renameat2", syscall(SYS_renameat2, AT_FDCWD, "old", AT_FDCWD, "new", (unsigned)flags));
    made("linkat", syscall(SYS_linkat, AT_FDCWD, "old", AT_FDCWD, "more", (int)flags));
    made("unlinkat", syscall(SYS_unlinkat, AT_FDCWD, "more", (int)flags));
    made("statx", syscall(SYS_statx, AT_FDCWD, "old", (int)flags, UINT_MAX >> 1, buffer));
    made("statx", syscall(SYS_statx, AT_FDCWD, "old", 0, (unsigned)flags, buffer));
    unlink("more");
  }
}

static void listings(void) {
  int directory = open(".", O_RDONLY | O_DIRECTORY);
  EACH(offset) {
    made("lseek", syscall(SYS_lseek, directory, offset, SEEK_SET));
    made("getdents64", syscall(SYS_getdents64, directory, buffer, sizeof buffer));
  }
  EACH(size) {
    lseek(directory, 0, SEEK_SET);
    if ((unsigned)size <= sizeof buffer) made("getdents64", syscall(SYS_getdents64, directory, buffer, (unsigned)size));
  }
  made("fsync", syscall(SYS_fsync, directory));
  EACH(command) made("ioctl", syscall(SYS_ioctl, directory, (unsigned)command, buffer));
  close(directory);
}

static void locks(void) {
  int file = fresh("locks");
  EACH(start) EACH(length) for (short kind = F_RDLCK; kind <= F_UNLCK; kind++) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
    made("fcntl", syscall(SYS_fcntl, file, F_SETLK, &lock));
    made("fcntl", syscall(SYS_fcntl, file, F_GETLK, &lock));
  }
  EACH(how) made("flock", syscall(SYS_flock, file, (int)how | LOCK_NB));
  EACH(command) made("ioctl", syscall(SYS_ioctl, file, (unsigned)command, buffer));
  close(file);
}

/* Handles lead to inodes of any number and generation. */
static void handles(void) {
  static const int kinds[] = {0, 1, 2, 0x81, 0x82, 0xff};
  struct { unsigned bytes; int kind; uint32_t parts[8]; } handle;
  int mount = open(".", O_RDONLY | O_DIRECTORY);
  for (size_t i = 0; i < 6; i++) EACH(node) EACH(generation) for (unsigned bytes = 0; bytes <= 24; bytes += 4) {
    handle.bytes = bytes;
    handle.kind = kinds[i];
    for (int part = 0; part < 8; part += 2) {
      handle.parts[part] = node >> 32;
      handle.parts[part + 1] = node;
    }
    handle.parts[2] = generation;
    int file = made("open_by_handle_at", syscall(SYS_open_by_handle_at, mount, &handle, O_RDONLY | O_NONBLOCK));
    if (file >= 0) close(file);
  }
  close(mount);
}

int main(void) {
  memset(buffer, 'b', sizeof buffer);
  times();
  sizes();
  bytes();
  places();
  space();
  copies();
  attributes();
  owners_and_modes();
  names();
  listings();
  locks();
  handles();
  printf("%ld\n", calls);
  return 0;
}
