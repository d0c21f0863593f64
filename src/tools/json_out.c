/* Builds and prints the one JSON object of --json. It must not know the verbs. */
#include "json_out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "commands.h"
#include "text.h"

json_t *json_out_text(const char *s)
{
    if (!s)
        return json_null();
    json_t *text = json_string(s);
    if (text)
        return text;
    char *escaped = NULL;
    size_t nbytes;
    FILE *f = open_memstream(&escaped, &nbytes);
    if (!f)
        return NULL;
    text_print(f, s);
    if (fclose(f) == 0)
        text = json_string(escaped);
    free(escaped);
    return text;
}

json_t *json_out_u64(uint64_t value)
{
    return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

json_t *json_out_double(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

json_t *json_out_u64s(const uint64_t *values, size_t count)
{
    json_t *array = json_array();
    bool ok = array;
    for (size_t i = 0; i < count && ok; i++)
        ok = json_out_append(array, json_out_u64(values[i]));
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

json_t *json_out_mesh(const struct fsdpck_mesh *mesh)
{
    json_t *array = json_array();
    bool ok = array;
    for (uint32_t i = 0; i < mesh->ndim && ok; i++) {
        json_t *dim = json_object();
        ok = json_out_put(dim, "name", json_out_text(mesh->names[i]));
        ok = json_out_put(dim, "size", json_out_u64(mesh->sizes[i])) && ok;
        ok = json_out_append(array, dim) && ok;
    }
    if (ok)
        return array;
    json_decref(array);
    return NULL;
}

bool json_out_put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

bool json_out_append(json_t *array, json_t *value)
{
    return json_array_append_new(array, value) == 0;
}

int json_out_print(json_t *object, bool complete, int done)
{
    if (!complete) {
        fputs("fsdpck: no memory for the JSON object\n", stderr);
        done = EXIT_SYSTEM;
    } else if (json_dumpf(object, stdout, JSON_COMPACT) == 0) {
        /* a failed write shows again, with its reason, when main closes stdout */
        putchar('\n');
    }
    json_decref(object);
    return done;
}
