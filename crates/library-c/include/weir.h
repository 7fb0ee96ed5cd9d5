/* weir in a program's own threads: files of a store without system calls.
 *
 * The functions do what the functions of POSIX without `weir_` do, on a store that this process has open. They fail with -1, or
 * NULL, and errno; weir_error() says more. Paths begin at the root of the volume, with or without a slash.
 *
 * A handle is a number, not an address. After it was closed, also with its store, and in a forked child, each call fails with
 * EBADF. NULL for a handle, a path or a buffer is EFAULT, and a length above SSIZE_MAX is EINVAL. Any other invalid pointer ends
 * the program; the store is then as after kill -9: all that was synced is there.
 *
 * All functions may be called by several threads at once, also with one handle. None may be called by a signal handler.
 */

#ifndef WEIR_H
#define WEIR_H

/* Made by cbindgen from the sources of the crate weir-c: do not edit. */

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/**
 * For weir_change.kind: writes `length` bytes from `bytes` to `file` at `offset`, also if it was opened with O_APPEND.
 */
#define WEIR_WRITE 1

/**
 * For weir_change.kind: renames `path` to `new_path`, and replaces what has that name.
 */
#define WEIR_RENAME 2

/**
 * For weir_change.kind: removes the name `path` of a file.
 */
#define WEIR_REMOVE 3

/**
 * For weir_options.flags: never writes to the store; changes fail with EROFS.
 */
#define WEIR_READ_ONLY 1

/**
 * For weir_options.flags: accepts a buffer that loses synced data when the power fails.
 */
#define WEIR_VOLATILE_BUFFER 2

/**
 * An open file or directory.
 */
typedef struct weir_file weir_file;

/**
 * A listing of a directory.
 */
typedef struct weir_dir weir_dir;

/**
 * An open store.
 */
typedef struct weir_store weir_store;

/**
 * One of several changes. Members that its kind does not name are not looked at.
 */
typedef struct {
  /**
   * WEIR_WRITE, WEIR_RENAME or WEIR_REMOVE.
   */
  unsigned int kind;
  /**
   * A file that is open for writing.
   */
  weir_file *file;
  /**
   * What is written.
   */
  const void *bytes;
  /**
   * Its length.
   */
  size_t length;
  /**
   * Where in the file.
   */
  off_t offset;
  /**
   * The name that is taken away.
   */
  const char *path;
  /**
   * The name that a renamed file gets.
   */
  const char *new_path;
} weir_change;

/**
 * How a store is opened. All zeros are the defaults.
 */
typedef struct {
  /**
   * The volume; NULL: `main`.
   */
  const char *volume;
  /**
   * The buffer's file or device; NULL: where it was last, or beside the store.
   */
  const char *buffer;
  /**
   * Memory for pages and deltas, in bytes: at least 16 MiB; 0: 128 MiB.
   */
  uint64_t memory_bytes;
  /**
   * Several of WEIR_READ_ONLY and WEIR_VOLATILE_BUFFER, or 0.
   */
  unsigned int flags;
} weir_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The last error in this thread, in one line. If a store cannot be opened, the line says what to do next, often with the command.
 * Valid until the next call fails in this thread; empty before the first.
 */
const char *weir_error(void);

/**
 * The attributes of the file to which `path` leads.
 */
int weir_stat(weir_store *store, const char *path, struct stat *into);

/**
 * The attributes of the file at `path`, also if that is a symbolic link.
 */
int weir_lstat(weir_store *store, const char *path, struct stat *into);

/**
 * The attributes of an open file.
 */
int weir_fstat(weir_file *file, struct stat *into);

/**
 * Whether this process may use the file so: F_OK, or several of R_OK, W_OK and X_OK.
 */
int weir_access(weir_store *store, const char *path, int mode);

/**
 * Sets the size of the file to which `path` leads.
 */
int weir_truncate(weir_store *store, const char *path, off_t size);

/**
 * Sets the permission bits of the file to which `path` leads.
 */
int weir_chmod(weir_store *store, const char *path, mode_t mode);

/**
 * Sets the permission bits of an open file.
 */
int weir_fchmod(weir_file *file, mode_t mode);

/**
 * Sets owner and group of the file to which `path` leads. (uid_t)-1 and (gid_t)-1 leave one as it is.
 */
int weir_chown(weir_store *store, const char *path, uid_t uid, gid_t gid);

/**
 * As weir_chown(), but of a symbolic link itself.
 */
int weir_lchown(weir_store *store, const char *path, uid_t uid, gid_t gid);

/**
 * As weir_chown(), of an open file.
 */
int weir_fchown(weir_file *file, uid_t uid, gid_t gid);

/**
 * Sets the times of last access and last change of the file to which `path` leads. `times` are two, as of utimensat(); NULL is now.
 */
int weir_utimens(weir_store *store,
                 const char *path,
                 const struct timespec *times);

/**
 * As weir_utimens(), but of a symbolic link itself.
 */
int weir_lutimens(weir_store *store, const char *path, const struct timespec *times);

/**
 * As weir_utimens(), of an open file.
 */
int weir_futimens(weir_file *file, const struct timespec *times);

/**
 * Makes `count` changes at once, in their order: every other thread, and whoever opens the store after a crash, sees all of them or
 * none. They are durable after a later weir_commit(), or on return if a file was opened with O_SYNC or O_DSYNC. Only a read that
 * began before may have some pages from before and others from after.
 *
 * If one fails, nothing has changed, but that set-user-ID bits of the files may be gone; errno is that change's. Names are those before the first change. Fails with EFBIG for more
 * than 64 changes or 1 MiB, or if the buffer is too small for so many; EXDEV for a file of another store; EINVAL for an unknown kind.
 */
int weir_apply(weir_store *store,
               const weir_change *changes,
               size_t count);

/**
 * Opens a file or directory, or makes a file. `mode` is that of a new file.
 *
 * Takes the flags of open(): O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_DIRECTORY, O_NOFOLLOW. O_PATH and O_TMPFILE,
 * FIFOs, sockets and devices are EOPNOTSUPP. Other flags change nothing.
 */
weir_file *weir_open(weir_store *store,
                     const char *path,
                     int flags,
                     mode_t mode);

/**
 * As weir_open(). A path without a slash at its start begins at `directory`, which is open.
 */
weir_file *weir_openat(weir_file *directory, const char *path, int flags, mode_t mode);

/**
 * Closes a file. A file without a name ends with the last handle.
 */
int weir_close(weir_file *file);

/**
 * Reads from the file's position on, and moves it.
 */
ssize_t weir_read(weir_file *file, void *into, size_t count);

/**
 * Reads from `offset` on.
 */
ssize_t weir_pread(weir_file *file, void *into, size_t count, off_t offset);

/**
 * Writes at the file's position, or with O_APPEND at its end, and moves the position behind what was written.
 */
ssize_t weir_write(weir_file *file, const void *from, size_t count);

/**
 * Writes at `offset`, or with O_APPEND at the file's end.
 */
ssize_t weir_pwrite(weir_file *file, const void *from, size_t count, off_t offset);

/**
 * Moves the file's position, and returns it. `whence` is SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE.
 */
off_t weir_lseek(weir_file *file, off_t offset, int whence);

/**
 * Makes the file durable, and every earlier change of the volume.
 */
int weir_fsync(weir_file *file);

/**
 * The same as weir_fsync().
 */
int weir_fdatasync(weir_file *file);

/**
 * Sets the size of an open file. New bytes are zeros.
 */
int weir_ftruncate(weir_file *file, off_t size);

/**
 * Allocates a range, or with FALLOC_FL_ZERO_RANGE or FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE makes it zeros.
 */
int weir_fallocate(weir_file *file, int mode, off_t offset, off_t length);

/**
 * Begins to list a directory.
 */
weir_dir *weir_opendir(weir_store *store, const char *path);

/**
 * The next entry, without `.` and `..`; NULL at the end, and errno is left alone then. Valid until the next call with this
 * listing, also one of another thread or weir_closedir(), and until its store is closed. Entries that are added or removed meanwhile are listed or not; all others exactly once.
 */
struct dirent *weir_readdir(weir_dir *listing);

/**
 * Begins again.
 */
int weir_rewinddir(weir_dir *listing);

/**
 * Ends a listing.
 */
int weir_closedir(weir_dir *listing);

/**
 * Makes a directory.
 */
int weir_mkdir(weir_store *store, const char *path, mode_t mode);

/**
 * Removes an empty directory.
 */
int weir_rmdir(weir_store *store, const char *path);

/**
 * Removes a name of a file. Of a file that was synced lately this is durable on return.
 */
int weir_unlink(weir_store *store, const char *path);

/**
 * Renames a file or directory, and replaces what has the new name, atomically.
 */
int weir_rename(weir_store *store, const char *old, const char *new_);

/**
 * Gives the file at `path` a further name.
 */
int weir_link(weir_store *store, const char *path, const char *name);

/**
 * Makes a symbolic link at `path` that leads to `target`.
 */
int weir_symlink(weir_store *store, const char *target, const char *path);

/**
 * Reads where a symbolic link leads: at most `size` bytes, without a zero byte at the end.
 */
ssize_t weir_readlink(weir_store *store, const char *path, char *into, size_t size);

/**
 * Opens the store that was formatted at `path`, and recovers. `options` may be NULL. Starts threads, which take no signals.
 *
 * Fails with EBUSY if it is mounted or open; ENOENT if the store, its buffer or the volume is missing; EINVAL if something else
 * is there; EUCLEAN if it is damaged; EOPNOTSUPP if it is of another version of weir, or its buffer is not durable; ESTALE if the
 * buffer is outdated or another store's. weir_error() says what to do next.
 */
weir_store *weir_open_store(const char *path,
                            const weir_options *options);

/**
 * Closes the store with all its files and listings, and writes everything back. Without this call, a program that ends loses
 * what was not synced and is younger than the commit interval, as if it were killed.
 *
 * Fails with EIO if not everything could be written back: the store is closed all the same, and what was synced is safe. Fails
 * with EBADF if the store was closed before.
 */
int weir_close_store(weir_store *store);

/**
 * Makes everything durable that was changed before the call. weir_fsync() of one file may cost less.
 */
int weir_commit(weir_store *store);

/**
 * Makes a read-only volume of the present state, durably on return.
 *
 * Fails with EEXIST if there is a volume of that name, EINVAL for a name that no volume can have, ENOSPC, EIO, EROFS.
 */
int weir_snapshot(weir_store *store, const char *name);

/**
 * Sets the permission bits that new files do not get, and returns the old ones. At first they are 022; the mask of the process
 * does not count.
 */
int weir_umask(weir_store *store,
               mode_t mask);

/**
 * Reads an extended attribute, and returns its length. With `size` 0 it returns the length alone; too small a buffer is ERANGE.
 */
ssize_t weir_getxattr(weir_store *store,
                      const char *path,
                      const char *name,
                      void *into,
                      size_t size);

/**
 * As weir_getxattr(), of an open file.
 */
ssize_t weir_fgetxattr(weir_file *file, const char *name, void *into, size_t size);

/**
 * Reads the names of all extended attributes, each with a zero byte at its end. Sizes are as of weir_getxattr().
 */
ssize_t weir_listxattr(weir_store *store, const char *path, char *into, size_t size);

/**
 * As weir_listxattr(), of an open file.
 */
ssize_t weir_flistxattr(weir_file *file, char *into, size_t size);

/**
 * Sets an extended attribute. `flags` are 0, XATTR_CREATE or XATTR_REPLACE.
 */
int weir_setxattr(weir_store *store, const char *path, const char *name, const void *value, size_t size, int flags);

/**
 * As weir_setxattr(), of an open file.
 */
int weir_fsetxattr(weir_file *file, const char *name, const void *value, size_t size, int flags);

/**
 * Removes an extended attribute.
 */
int weir_removexattr(weir_store *store, const char *path, const char *name);

/**
 * As weir_removexattr(), of an open file.
 */
int weir_fremovexattr(weir_file *file, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WEIR_H */
