/* config/load.c: where the text of a configuration comes from: itself, a file,
 * or base64.
 *
 * DeepSpeed's launcher hands a configuration to its children as urlsafe base64
 * (RFC 4648, section 5), and DeepSpeed takes an argument that names no file for
 * such text. So do we, but only if it decodes to something that can be JSON: a
 * mistyped file name should be called that.
 *
 * In this order: a text that begins as JSON does, or has several lines; a path
 * that exists; base64. The name for messages is the path, or says which of the
 * others it was.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_BYTES (16 << 20) /* of a file: what is larger is no configuration */

/* Whether s cannot be the path of a file: an object, a list, or several
 * lines. */
static bool is_json_text(const char *s)
{
    const char *begin = s + strspn(s, " \t\r\n\xEF\xBB\xBF");
    return *begin == '{' || *begin == '[' || strpbrk(s, "\r\n");
}

/* Pipes are accepted (process substitution of a shell); their size is not
 * known before. */
static char *text_from_file(const char *path, const struct stat *s, size_t *n)
{
    if (S_ISDIR(s->st_mode))
        return dsi_refuse("config: %s is a directory; expected a JSON file", path);
    if (!S_ISREG(s->st_mode) && !S_ISFIFO(s->st_mode)) /* a device may never end */
        return dsi_refuse("config: %s is neither a file nor a pipe", path);
    if (s->st_size > MOST_BYTES)
        return dsi_refuse("config: %s has %lld bytes; a configuration has at most %d", path,
                          (long long)s->st_size, MOST_BYTES);
    return dsi_file_read(path, n);
}

/* NULL, without a message, if it is not base64 of what can be JSON. */
static char *text_from_base64(const char *text, size_t *n)
{
    char *decoded = dsi_base64_decode(text, n);
    if (decoded && (is_json_text(decoded) || strchr(decoded, ':'))) return decoded;
    dsi_free(decoded);
    return NULL;
}

/* A text that can be JSON is never taken for a path; a path that exists never
 * for base64. */
char *dsi_config_load_text(const char *path_or_text, size_t *n, char **name)
{
    struct stat s;
    char *text = NULL;
    const char *called = path_or_text;
    int missing = stat(path_or_text, &s) == 0 ? 0 : errno;
    if (!*path_or_text) return dsi_refuse("config: the path of the file is empty");
    if (is_json_text(path_or_text)) {
        called = "the given text";
        *n = strlen(path_or_text);
        text = dsi_strdup(path_or_text);
    } else if (!missing) {
        text = text_from_file(path_or_text, &s, n);
        if (!text) return NULL;
    } else {
        called = "the base64 text";
        text = text_from_base64(path_or_text, n);
        if (!text)
            return dsi_refuse_with(
                DS_EIO,
                "config: %.200s: %s; expected the path of a file, JSON text, or base64 of it",
                path_or_text, strerror(missing));
    }
    if (!*n) {
        dsi_free(text);
        return dsi_refuse("config: %s is empty; expected an object { ... } of keys", called);
    }
    *name = dsi_strdup(called);
    return text;
}
