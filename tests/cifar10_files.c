/* tests/cifar10_files.c: folders in the two layouts of CIFAR-10, with made-up
 * images, and archives of them.
 * SPDX-License-Identifier: MIT */
#include "cifar10_files.h"
#include "check.h"

#include <archive.h>
#include <archive_entry.h>
#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#define PUT(b, literal) put(b, literal, sizeof(literal) - 1)

enum { PIXELS = 3072, BATCHES = 6 };

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static char made[64][64];
static int n_made;
static pid_t maker;

static struct path {
    struct path *next;
    char text[];
} * paths;

static void clean_up(void)
{
    while (paths) {
        struct path *p = paths;
        paths = p->next;
        free(p);
    }
    while (getpid() == maker && n_made) nftw(made[--n_made], remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *new_folder(void)
{
    const char *root = getenv("TMPDIR");
    assert_true(n_made < 64);
    char *name = made[n_made];
    snprintf(name, sizeof made[0], "%s/ds-cifar10-XXXXXX",
             root && strlen(root) < 40 ? root : "/tmp");
    assert_non_null(mkdtemp(name));
    if (!n_made++) {
        maker = getpid();
        atexit(clean_up);
    }
    return name;
}

const char *in(const char *folder, const char *name)
{
    size_t n = strlen(folder) + strlen(name) + 2;
    struct path *p = malloc(sizeof *p + n);
    assert_non_null(p);
    snprintf(p->text, n, "%s/%s", folder, name);
    p->next = paths;
    paths = p;
    return p->text;
}

uint8_t made_pixel(int b, int64_t i, int k)
{
    return (uint8_t)(37 * k + 101 * i + 13 * b + k / 97);
}
int made_label(int b, int64_t i) { return (int)((7 * i + b) % 10); }

void put(bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->p = realloc(b->p, b->room);
        assert_non_null(b->p);
    }
    if (n) memcpy(b->p + b->n, data, n);
    b->n += n;
}

void put_text(bytes *b, const char *s) { put(b, s, strlen(s)); }

void save(const char *path, const void *data, size_t n)
{
    unlink(path); /* ext4 syncs a file that is truncated and rewritten */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

bytes load(const char *path)
{
    bytes b = {0};
    char chunk[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) put(&b, chunk, n);
    fclose(f);
    return b;
}

bool there(const char *path) { return access(path, F_OK) == 0; }

int entries(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    if (d) closedir(d);
    return n;
}

static const char *batch_name(int b)
{
    static const char *const names[] = {"test_batch",   "data_batch_1", "data_batch_2",
                                        "data_batch_3", "data_batch_4", "data_batch_5"};
    return names[b];
}

static void make(const char *folder, const char *layout, const char *end, int n,
                 void (*write)(bytes *, int, int))
{
    const char *home = in(folder, layout);
    char name[64];
    bytes mark = {0};
    mkdir(folder, 0777);
    assert_int_equal(mkdir(home, 0777), 0);
    put_text(&mark, "made up for a test\n");
    for (int b = 0; b < BATCHES; b++) {
        bytes file = {0};
        write(&file, b, n);
        snprintf(name, sizeof name, "%s%s", batch_name(b), end);
        save(in(home, name), file.p, file.n);
        free(file.p);
        snprintf(name, sizeof name, "%s%s %d\n", batch_name(b), end, n);
        put_text(&mark, name);
    }
    save(in(home, "SAMPLE"), mark.p, mark.n);
    free(mark.p);
}

static void put_pixels(bytes *out, int b, int64_t i)
{
    uint8_t pixels[PIXELS];
    for (int k = 0; k < PIXELS; k++) pixels[k] = made_pixel(b, i, k);
    put(out, pixels, PIXELS);
}

static void put_records(bytes *out, int b, int n)
{
    for (int i = 0; i < n; i++) {
        put(out, &(uint8_t){(uint8_t)made_label(b, i)}, 1);
        put_pixels(out, b, i);
    }
}

void make_bin(const char *folder, int n)
{
    make(folder, "cifar-10-batches-bin", ".bin", n, put_records);
}
void make_py(const char *folder, int n) { make(folder, "cifar-10-batches-py", "", n, put_batch); }

/* Opcode by opcode what Python 2's cPickle wrote into the official files. */
void put_batch(bytes *out, int b, int n)
{
    char number[64];
    uint8_t size[4];
    PUT(out, "\x80\x02}q\x01(");
    PUT(out, "U\x0b"
             "batch_labelq\x02U\x04testq\x03");
    PUT(out, "U\x06labelsq\x04]q\x05(");
    for (int i = 0; i < n; i++) put(out, (uint8_t[]){'K', (uint8_t)made_label(b, i)}, 2);
    PUT(out, "eU\x04"
             "dataq\x06"
             "cnumpy.core.multiarray\n_reconstruct\nq\x07"
             "cnumpy\nndarray\nq\x08");
    PUT(out, "K\x00\x85U\x01"
             "b\x87Rq\x09(K\x01M");
    put(out, (uint8_t[]){(uint8_t)n, (uint8_t)(n >> 8), 'M', 0, 12, 0x86}, 6);
    PUT(out, "cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b");
    PUT(out, "(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T");
    for (int k = 0; k < 4; k++) size[k] = (uint8_t)(n * PIXELS >> 8 * k);
    put(out, size, 4);
    for (int i = 0; i < n; i++) put_pixels(out, b, i);
    PUT(out, "tbU\x09"
             "filenamesq\x0c]q\x0d(");
    for (int i = 0; i < n; i++) {
        snprintf(number, sizeof number, "U\x0cimg_%04d.pngq%c", i, 14 + i % 100);
        put_text(out, number);
    }
    PUT(out, "eu.");
}

/* ---- archives ---------------------------------------------------------------------------------------- */

void make_archive(const char *path, const entry *e, int n)
{
    struct archive *a = archive_write_new();
    archive_write_add_filter_gzip(a);
    archive_write_set_format_ustar(a);
    assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
    for (int k = 0; k < n; k++) {
        struct archive_entry *one = archive_entry_new();
        size_t length = strlen(e[k].path);
        archive_entry_set_pathname(one, e[k].path);
        archive_entry_set_perm(one, 0644);
        archive_entry_set_filetype(one, e[k].path[length - 1] == '/' ? AE_IFDIR : AE_IFREG);
        archive_entry_set_size(one, (la_int64_t)e[k].bytes);
        if (e[k].link) {
            archive_entry_set_filetype(one, AE_IFLNK);
            archive_entry_set_symlink(one, e[k].link);
        }
        assert_int_equal(archive_write_header(a, one), ARCHIVE_OK);
        if (e[k].bytes) assert_int_equal(archive_write_data(a, e[k].data, e[k].bytes), e[k].bytes);
        archive_entry_free(one);
    }
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
}

void archive_of_folder(const char *path, const char *folder)
{
    entry e[BATCHES + 2] = {{.path = "cifar-10-batches-bin/"}};
    bytes data[BATCHES + 2] = {{0}};
    char names[BATCHES + 2][64];
    for (int k = 1; k < BATCHES + 2; k++) {
        if (k <= BATCHES)
            snprintf(names[k], sizeof names[k], "cifar-10-batches-bin/%s.bin", batch_name(k - 1));
        else
            snprintf(names[k], sizeof names[k], "cifar-10-batches-bin/SAMPLE");
        data[k] = load(in(folder, names[k]));
        e[k] = (entry){.path = names[k], .data = data[k].p, .bytes = data[k].n};
    }
    make_archive(path, e, BATCHES + 2);
    for (int k = 1; k < BATCHES + 2; k++) free(data[k].p);
}
