/* rocksdb_client DIRECTORY commit: reads ids from standard input, commits each as one batch of two keys and a value,
 * synced, and prints it once RocksDB has returned.
 * rocksdb_client DIRECTORY list: verifies all checksums and prints "left ID", "right ID" or "body ID LENGTH" for each key.
 * Exits with 1 and a message when RocksDB reports an error. */
#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(char *error) {
    if (error) {
        fprintf(stderr, "rocksdb: %s\n", error);
        exit(1);
    }
}

static void put(rocksdb_writebatch_t *batch, const char *half, unsigned long id, const char *value, size_t len) {
    char key[64];
    int key_len = snprintf(key, sizeof key, "%s %lu", half, id);
    rocksdb_writebatch_put(batch, key, (size_t)key_len, value, len);
}

static void commit(rocksdb_t *db) {
    static char body[500];
    unsigned long id;
    char *error = NULL;
    rocksdb_writeoptions_t *options = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(options, 1);
    memset(body, 'x', sizeof body);
    while (scanf("%lu", &id) == 1) {
        rocksdb_writebatch_t *batch = rocksdb_writebatch_create();
        put(batch, "left", id, "", 0);
        put(batch, "body", id, body, id % sizeof body);
        put(batch, "right", id, "", 0);
        rocksdb_write(db, options, batch, &error);
        check(error);
        rocksdb_writebatch_destroy(batch);
        printf("%lu\n", id);
        fflush(stdout);
    }
}

static void list(rocksdb_t *db) {
    char *error = NULL;
    rocksdb_readoptions_t *options = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(options, 1);
    rocksdb_iterator_t *at = rocksdb_create_iterator(db, options);
    for (rocksdb_iter_seek_to_first(at); rocksdb_iter_valid(at); rocksdb_iter_next(at)) {
        size_t key_len, value_len;
        const char *key = rocksdb_iter_key(at, &key_len);
        rocksdb_iter_value(at, &value_len);
        printf("%.*s %zu\n", (int)key_len, key, value_len);
    }
    rocksdb_iter_get_error(at, &error);
    check(error);
    rocksdb_iter_destroy(at);
}

int main(int count, char **arguments) {
    char *error = NULL;
    if (count != 3)
        return 2;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_paranoid_checks(options, 1);
    /* So small that tables are written and compacted all the time. */
    rocksdb_options_set_write_buffer_size(options, 256 << 10);
    rocksdb_options_set_target_file_size_base(options, 256 << 10);
    rocksdb_options_set_max_bytes_for_level_base(options, 1 << 20);
    rocksdb_t *db = rocksdb_open(options, arguments[1], &error);
    check(error);
    if (strcmp(arguments[2], "commit") == 0) {
        puts("ready");
        fflush(stdout);
        commit(db);
    } else {
        list(db);
    }
    rocksdb_close(db);
    return 0;
}
