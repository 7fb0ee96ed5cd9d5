/* A ledger in a store: each run appends a line, makes it durable, and prints all lines.
 *
 *   ledger STORE TEXT
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <weir.h>

static int failed(void) {
    fprintf(stderr, "error: %s\n", weir_error());
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: ledger STORE TEXT\n");
        return 2;
    }
    weir_store *store = weir_open_store(argv[1], NULL);
    if (store == NULL)
        return failed();
    if (weir_mkdir(store, "/ledger", 0700) != 0 && errno != EEXIST)
        return failed();
    weir_file *file = weir_open(store, "/ledger/lines", O_RDWR | O_CREAT | O_APPEND, 0600);
    if (file == NULL)
        return failed();

    char line[256];
    int length = snprintf(line, sizeof line, "%.200s\n", argv[2]);
    if (weir_write(file, line, (size_t)length) != length || weir_fsync(file) != 0)
        return failed(); /* from here on, the line survives a crash of the machine */

    struct stat found;
    if (weir_fstat(file, &found) != 0)
        return failed();
    char bytes[4096];
    off_t at = 0;
    while (at < found.st_size) {
        ssize_t count = weir_pread(file, bytes, sizeof bytes, at);
        if (count <= 0)
            return failed();
        fwrite(bytes, 1, (size_t)count, stdout);
        at += count;
    }

    weir_dir *listing = weir_opendir(store, "/ledger");
    if (listing == NULL)
        return failed();
    errno = 0;
    for (struct dirent *entry; (entry = weir_readdir(listing)) != NULL;)
        printf("/ledger has %s\n", entry->d_name);
    if (errno != 0 || weir_closedir(listing) != 0)
        return failed();

    /* The names are POSIX's, and so are the errors. */
    if (weir_stat(store, "/absent", &found) == 0 || errno != ENOENT)
        return failed();
    if (weir_close(file) != 0 || weir_close_store(store) != 0)
        return failed();
    return 0;
}
