/* SPDX-License-Identifier: Apache-2.0 */
/* Export: the contents of the files; the treatment of aliases, config.json, items and types that safetensors lacks; and
 * a failure at any operation leaves nothing behind. */
#include <fsdpck/export.h>

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "hf/config.h"
#include "faulty_io.h"
#include "base/hash.h"
#include "base/ioutil.h"
#include "engine/source_impl.h"
#include "tree.h"

#define EMBED "\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}"
#define HALF  "\"h\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[24,30]}"
#define BYTE  "\"z.u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[30,32]}"

struct told {
    char notes[1024];
};

static void take_note(void *ctx, const char *line)
{
    struct told *t = ctx;
    snprintf(t->notes + strlen(t->notes), sizeof t->notes - strlen(t->notes), "%s\n", line);
}

/* Writes a safetensors file with ndata data bytes 0, 1, 2 … */
static void put(const char *root, const char *name, const char *header, size_t ndata)
{
    size_t n = strlen(header);
    char *path = tree_path(root, name);
    uint8_t *bytes = malloc(8 + n + ndata);
    assert_non_null(bytes);
    fsdpck_put64(bytes, n);
    memcpy(bytes + 8, header, n);
    for (size_t i = 0; i < ndata; i++)
        bytes[8 + n + i] = (uint8_t)i;
    assert_int_equal(fsdpck_write_file(&fsdpck_io_posix, path, bytes, 8 + n + ndata, NULL), 0);
    free(path);
    free(bytes);
}

/* Creates root/m, a small model folder with 32 bytes of weights. */
static char *new_root(const char *config)
{
    char *root = tree_new();
    tree_file(root, "m/config.json", config);
    tree_file(root, "m/sub/words.txt", "words");
    put(root, "m/model.safetensors", "{" EMBED "," HALF "," BYTE "}", 32);
    return root;
}

static void end_root(char *root)
{
    tree_remove(root);
    free(root);
}

static struct fsdpck_source *open_under(const char *root, const char *name, const struct fsdpck_options *opt)
{
    struct fsdpck_source *src = NULL;
    struct fsdpck_error err = { 0 };
    char *path = tree_path(root, name);
    if (fsdpck_source_open(path, NULL, opt, &src, &err) != 0)
        fail_msg("%s: %s", err.file, err.message);
    free(path);
    return src;
}

static int export_to(struct fsdpck_source *src, const char *root, const char *out, struct fsdpck_export_request *req,
                     struct fsdpck_error *err)
{
    char *path = tree_path(root, out);
    req->out = path;
    int rc = fsdpck_export(src, req, NULL, NULL, err);
    free(path);
    return rc;
}

static char *read_text(const char *root, const char *name, uint64_t *nbytes)
{
    char *path = tree_path(root, name), *text = NULL;
    assert_int_equal(fsdpck_read_file(&fsdpck_io_posix, path, 1 << 20, &text, nbytes, NULL), 0);
    free(path);
    return text;
}

/* The JSON header without its trailing spaces; malloc'ed. Checks the padding. */
static char *header_of(const char *root, const char *name)
{
    uint64_t nbytes;
    char *text = read_text(root, name, &nbytes);
    uint64_t n = fsdpck_le64((const uint8_t *)text);
    assert_true(n <= nbytes - 8);
    assert_int_equal((8 + n) % 8, 0);
    memmove(text, text + 8, n);
    while (n && text[n - 1] == ' ')
        n--;
    text[n] = '\0';
    return text;
}

static void check_header(const char *root, const char *name, const char *want)
{
    char *header = header_of(root, name);
    assert_string_equal(header, want);
    free(header);
}

/* ---- the output ---- */

static void a_folder_comes_out_as_it_went_in(void **state)
{
    (void)state;
    char *root = new_root("{\"lr\": 1e-05}"), *text;
    struct fsdpck_source *src = open_under(root, "m", NULL), *back;
    struct fsdpck_export_request req = { 0 };
    uint8_t a[32], b[32];
    uint64_t nbytes;
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    check_header(root, "o/model.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}," EMBED "," HALF "," BYTE "}");
    text = read_text(root, "o/config.json", &nbytes);
    assert_string_equal(text, "{\"lr\": 1e-05}");
    free(text);
    assert_true(tree_exists(root, "o/sub/words.txt"));
    assert_false(tree_exists(root, "o/model.safetensors.index.json"));
    back = open_under(root, "o", NULL);
    for (size_t i = 0; i < 3; i++) {
        const struct fsdpck_read from = { .tensor = fsdpck_source_tensor(src, i), .dst = a },
                                 to = { .tensor = fsdpck_source_tensor(back, i), .dst = b };
        assert_int_equal(fsdpck_source_read(src, &from, 1, NULL), 0);
        assert_int_equal(fsdpck_source_read(back, &to, 1, NULL), 0);
        assert_memory_equal(a, b, from.tensor->nbytes);
    }
    assert_int_equal(export_to(src, root, "o", &req, NULL), FSDPCK_ERR_EXISTS);
    req.force = true;
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    fsdpck_source_close(back);
    fsdpck_source_close(src);
    end_root(root);
}

static void files_are_cut_as_transformers_cuts(void **state)
{
    (void)state;
    char *root = new_root("{}"), *text;
    struct fsdpck_source *src = open_under(root, "m", NULL);
    struct fsdpck_export_request req = { .max_shard_nbytes = 8 }; /* 24 alone, first; 6 + 2 together */
    uint64_t nbytes;
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    text = read_text(root, "o/model.safetensors.index.json", &nbytes);
    assert_string_equal(text, "{\n  \"metadata\": {\n    \"total_size\": 32\n  },\n  \"weight_map\": {\n"
                              "    \"h\": \"model-00002-of-00002.safetensors\",\n"
                              "    \"model.embed_tokens.weight\": \"model-00001-of-00002.safetensors\",\n"
                              "    \"z.u8\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
    free(text);
    check_header(root, "o/model-00001-of-00002.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}," EMBED "}");
    fsdpck_source_close(src);
    end_root(root);
}

static void one_file_is_aligned_for_every_type(void **state)
{
    (void)state;
    char *root = new_root("{}");
    struct fsdpck_source *src = open_under(root, "m", NULL);
    const struct fsdpck_pair names[] = { { "h", "b" } };
    const char *const no_embed[] = { "h", "z*" };
    struct fsdpck_export_request req = { .select = { .rename = names,
                                                     .nrename = 1,
                                                     .include = no_embed,
                                                     .ninclude = 2,
                                                     .cast = true,
                                                     .dtype = FSDPCK_FLOAT64 } };
    assert_int_equal(export_to(src, root, "o.safetensors", &req, NULL), 0);
    check_header(
        root, "o.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F64\",\"shape\":[3],\"data_offsets\":[0,24]},"
        "\"z.u8\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[24,26]}}");
    fsdpck_source_close(src);

    put(root, "odd.safetensors",
        "{\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_"
        "offsets\":[2,10]},"
        "\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[10,18]},\"g\":{\"dtype\":\"F32\",\"shape\":[1,0],"
        "\"data_offsets\":[18,18]}}",
        18);
    src = open_under(root, "odd.safetensors", NULL);
    memset(&req, 0, sizeof req);
    assert_int_equal(export_to(src, root, "p.safetensors", &req, NULL), 0);
    check_header(root, "p.safetensors",
                 "{\"__metadata__\":{\"format\":\"pt\"},\"d\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},"
                 "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},\"g\":{\"dtype\":\"F32\",\"shape\":["
                 "1,0],\"data_offsets\":[16,16]},"
                 "\"u\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[16,18]}}");
    uint64_t nbytes;
    char *bytes = read_text(root, "p.safetensors", &nbytes);
    assert_memory_equal(bytes + nbytes - 18, "\12\13\14\15\16\17\20\21\2\3\4\5\6\7\10\11\0\1", 18);
    free(bytes);
    fsdpck_source_close(src);
    end_root(root);
}

static void second_names(void **state)
{
    (void)state;
    char *tied = new_root("{\"tie_word_embeddings\": true}"), *untied = new_root("{}");
    struct told told = { "" };
    const struct fsdpck_options opt = { .note = take_note, .ctx = &told };
    const struct fsdpck_pair head = { "lm_head.weight", "model.embed_tokens.weight" };
    struct fsdpck_source *src = open_under(tied, "m", &opt);
    struct fsdpck_export_request req = { 0 };
    assert_int_equal(fsdpck_source_ntensors(src), 4);
    assert_int_equal(export_to(src, tied, "o", &req, NULL), 0);
    check_header(tied, "o/model.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}," EMBED "," HALF "," BYTE "}");
    assert_string_equal(told.notes, "");
    fsdpck_source_close(src);

    src = open_under(untied, "m", &opt);
    req.select = (struct fsdpck_select){ .alias = &head, .nalias = 1 };
    assert_int_equal(export_to(src, untied, "o", &req, NULL), 0);
    char *header = header_of(untied, "o/model.safetensors");
    assert_non_null(strstr(header, "\"lm_head.weight\":{\"dtype\":\"F32\",\"shape\":[2,3]"));
    assert_non_null(strstr(told.notes, "'lm_head.weight' is a second name of 'model.embed_tokens.weight'"));
    free(header);
    fsdpck_source_close(src);
    end_root(tied);
    end_root(untied);
}

static void a_head_that_holds_the_embedding_takes_its_name(void **state)
{
    (void)state;
    char *root = new_root("{\"tie_word_embeddings\": true}");
    struct fsdpck_source *src = open_under(root, "m", NULL);
    struct fsdpck_export_request req = { 0 };
    const char *name = source_tensors(src)[0].name; /* now the head is stored, and the embedding is an alias of it */
    source_tensors(src)[0].name = source_tensors(src)[3].name;
    source_tensors(src)[3].name = name;
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    check_header(root, "o/model.safetensors", "{\"__metadata__\":{\"format\":\"pt\"}," EMBED "," HALF "," BYTE "}");
    fsdpck_source_close(src);
    end_root(root);
}

static void what_safetensors_lacks_is_refused_before_anything_is_written(void **state)
{
    (void)state;
    char *root = new_root("{}"), *before = tree_dump(root), *after;
    struct fsdpck_source *src = open_under(root, "m", NULL);
    struct fsdpck_export_request req = { 0 };
    struct fsdpck_error err = { 0 }, reserved = { 0 };
    source_tensors(src)[1].dtype = FSDPCK_COMPLEX128;
    assert_int_equal(export_to(src, root, "o", &req, &err), FSDPCK_ERR_UNSUPPORTED);
    assert_string_equal(err.tensor, "h");
    assert_non_null(strstr(err.message, "complex128"));
    source_tensors(src)[1].dtype = FSDPCK_BFLOAT16;
    source_tensors(src)[1].name = "__metadata__";
    assert_int_equal(export_to(src, root, "o", &req, &reserved), FSDPCK_ERR_UNSUPPORTED);
    after = tree_dump(root);
    assert_string_equal(after, before);
    free(before);
    free(after);
    fsdpck_source_close(src);
    end_root(root);
}

static void items_are_left_behind_aloud(void **state)
{
    (void)state;
    char *root = new_root("{}");
    struct told told = { "" };
    const struct fsdpck_options opt = { .note = take_note, .ctx = &told };
    struct fsdpck_source *src = open_under(root, "m", &opt);
    struct fsdpck_export_request req = { 0 };
    assert_non_null(fsdpck_source_add_item(src, "step", NULL, 0, NULL));
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    assert_string_equal(told.notes, "1 non-tensor value is left behind: safetensors holds tensors only\n");
    fsdpck_source_close(src);
    end_root(root);
}

/* ---- config.json ---- */

static void only_dtypes_change_in_config(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "{\n \"a\": 1e-05,\n \"torch_dtype\": \"float32\" }\n",
          "{\n \"a\": 1e-05,\n \"torch_dtype\": \"bfloat16\" }\n" },
        { "{\"dtype\":null,\"torch_dtype\":\"auto\"}", "{\"dtype\":\"bfloat16\",\"torch_dtype\":\"bfloat16\"}" },
        { "{\"x\": 1}", "{\n  \"torch_dtype\": \"bfloat16\",\"x\": 1}" },
        { "{}", "{\n  \"torch_dtype\": \"bfloat16\"\n}" },
        { "{\"dtype\":\"float32\",\"text_config\":{\"dtype\":\"float32\",\"n\":2},\"quantization_config\":{\"dtype\":"
          "\"int8\"},\"vision_config\":{\"dtype\":null}}",
          "{\"dtype\":\"bfloat16\",\"text_config\":{\"dtype\":\"bfloat16\",\"n\":2},\"quantization_config\":{\"dtype\":"
          "\"int8\"},\"vision_config\":{\"dtype\":null}}" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out = NULL;
        uint64_t n;
        assert_int_equal(fsdpck_config_set_dtype("c", cases[i][0], strlen(cases[i][0]), "bfloat16", &out, &n, NULL), 0);
        assert_string_equal(out, cases[i][1]);
        assert_int_equal(n, strlen(out));
        free(out);
    }
    char *out = NULL;
    uint64_t n;
    assert_int_equal(fsdpck_config_set_dtype("c", "[1]", 3, "bfloat16", &out, &n, NULL), FSDPCK_ERR_FORMAT);
    assert_null(out);
}

static void casting_says_so_in_config(void **state)
{
    (void)state;
    char *root = new_root("{\"torch_dtype\": \"float32\"}"), *text;
    struct fsdpck_source *src = open_under(root, "m", NULL);
    struct fsdpck_export_request req = { .select = { .cast = true, .dtype = FSDPCK_FLOAT16 } };
    uint64_t n;
    assert_int_equal(export_to(src, root, "o", &req, NULL), 0);
    text = read_text(root, "o/config.json", &n);
    assert_string_equal(text, "{\"torch_dtype\": \"float16\"}");
    free(text);
    fsdpck_source_close(src);
    end_root(root);
}

/* ---- failures ---- */

static int export_faulty(struct faulty *f, const char *root, const char *out, bool force, struct fsdpck_error *err)
{
    const struct fsdpck_options opt = { .io = faulty_io(f), .nthreads = 1 };
    struct fsdpck_source *src = NULL;
    char *path = tree_path(root, "m");
    struct fsdpck_export_request req = { .max_shard_nbytes = 8, .force = force };
    int rc = fsdpck_source_open(path, NULL, &opt, &src, err);
    if (rc == 0)
        rc = export_to(src, root, out, &req, err);
    fsdpck_source_close(src);
    free(path);
    return rc;
}

/* Each operation fails once; the loop ends with the run in which none fails. */
static void a_failure_anywhere_leaves_nothing(void **state)
{
    (void)state;
    static const int faults[] = { EIO, ENOSPC, EINTR, 0 };
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) {
        bool hit = true;
        for (unsigned n = 0; hit; n++) {
            char *root = new_root("{}"), *before = tree_dump(root), *after;
            struct faulty *f = faulty_new(root);
            struct fsdpck_error err = { 0 };
            faulty_fail_at(f, n, faults[k]);
            int rc = export_faulty(f, root, "o", false, &err);
            hit = faulty_hit(f);
            after = tree_dump(root);
            if (rc != 0 && (strcmp(before, after) != 0 || err.code != rc || !*err.message))
                fail_msg("fault %d at operation %u left:\n%s\n(%s)", faults[k], n, after, err.message);
            if (rc == 0 &&
                !(tree_exists(root, "o/model.safetensors.index.json") && tree_exists(root, "o/sub/words.txt")))
                fail_msg("fault %d at operation %u: success, but the output is not complete:\n%s", faults[k], n, after);
            if (rc != 0 && (faults[k] == EINTR || faults[k] == 0))
                fail_msg("fault %d at operation %u ended the export: %s", faults[k], n, err.message);
            faulty_free(f);
            free(before);
            free(after);
            end_root(root);
            assert_true(n < 5000);
        }
    }
}

/* OUT on a mount point: names contain the save id until the end, and a failure leaves the old files. */
static void in_place_old_or_new(void **state)
{
    (void)state;
    bool hit = true;
    for (unsigned n = 0; hit; n++) {
        char *root = new_root("{}"), *out = tree_path(root, "o");
        struct faulty *f;
        struct fsdpck_error err = { 0 };
        tree_file(root, "o/config.json", "{\"model_type\": \"old\"}");
        tree_file(root, "o/model.safetensors", "old");
        tree_file(root, "o/mine.txt", "not fsdpck's");
        f = faulty_new(root);
        faulty_other_device(f, out);
        faulty_fail_at(f, n, EIO);
        int rc = export_faulty(f, root, "o", true, &err);
        hit = faulty_hit(f);
        assert_true(tree_exists(root, "o/mine.txt"));
        bool old = tree_exists(root, "o/model.safetensors"), new = tree_exists(root, "o/model.safetensors.index.json");
        if (rc == 0 ? !new : !old && !new)
            fail_msg("EIO at operation %u: rc %d, old %d, new %d (%s)", n, rc, old, new, err.message);
        if (!hit) {
            struct fsdpck_source *src = open_under(root, "o", NULL);
            assert_int_equal(fsdpck_source_ntensors(src), 3);
            assert_int_equal(fsdpck_source_nassets(src), 3);
            assert_false(old);
            fsdpck_source_close(src);
        }
        faulty_free(f);
        free(out);
        end_root(root);
        assert_true(n < 5000);
    }
}

/* ---- links among assets */

/* Exports root/FOLDER to root/o, returns the code and removes root/o. */
static int export_links(const char *root, const char *folder, struct fsdpck_error *err)
{
    struct fsdpck_source *src = open_under(root, folder, NULL);
    struct fsdpck_export_request req = { 0 };
    memset(err, 0, sizeof *err);
    int rc = export_to(src, root, "o", &req, err);
    char *out = tree_path(root, "o");
    if (rc != 0)
        assert_false(tree_exists(root, "o"));
    tree_remove(out);
    free(out);
    fsdpck_source_close(src);
    return rc;
}

static void link_at(const char *root, const char *name, const char *to)
{
    char *path = tree_path(root, name);
    unlink(path);
    assert_int_equal(symlink(to, path), 0);
    free(path);
}

static void links_lead_nowhere_else(void **state)
{
    (void)state;
    struct fsdpck_error err;
    char *root = new_root("{}"), *pipe = tree_path(root, "m/pipe");
    tree_file(root, "secret", "secret");
    tree_dir(root, "secrets");
    link_at(root, "m/inside.txt", "sub/words.txt");
    link_at(root, "m/folder", "../secrets");
    assert_int_equal(mkfifo(pipe, 0600), 0); /* skipped, and never opened */
    assert_int_equal(export_links(root, "m", &err), 0);
    static const char *const names[] = { "m/tokenizer.json", "m/sub/tokenizer.json" };
    for (size_t i = 0; i < 2; i++) {
        link_at(root, names[i], "/etc/passwd");
        assert_int_equal(export_links(root, "m", &err), FSDPCK_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.file, names[i]));
        assert_non_null(strstr(err.message, "'/etc/passwd'"));
        char *path = tree_path(root, names[i]);
        assert_int_equal(unlink(path), 0);
        free(path);
    }
    link_at(root, "m/tokenizer.json", "../secret");
    assert_int_equal(export_links(root, "m", &err), FSDPCK_ERR_UNSUPPORTED);
    free(pipe);
    end_root(root);
}

/* huggingface_hub stores files as blobs and links to them. */
static void links_of_the_hub_are_followed(void **state)
{
    (void)state;
    struct fsdpck_error err;
    char *root = new_root("{}");
    tree_file(root, "hub/models--a--b/blobs/1", "{}");
    tree_file(root, "hub/models--a--c/blobs/2", "{}");
    tree_file(root, "hub/models--a--b/refs", "{}");
    tree_dir(root, "hub/models--a--b/snapshots/r/sub");
    link_at(root, "hub/models--a--b/snapshots/r/model.safetensors", "../../../../m/model.safetensors");
    link_at(root, "hub/models--a--b/snapshots/r/config.json", "../../blobs/1");
    link_at(root, "hub/models--a--b/snapshots/r/sub/x.json", "../../../blobs/1");
    link_at(root, "snapshot", "hub/models--a--b/snapshots/r");
    assert_int_equal(export_links(root, "hub/models--a--b/snapshots/r", &err), 0);
    assert_int_equal(export_links(root, "snapshot", &err), 0);
    link_at(root, "hub/models--a--b/snapshots/r/config.json", "../../../models--a--c/blobs/2");
    assert_int_equal(export_links(root, "snapshot", &err), FSDPCK_ERR_UNSUPPORTED);
    link_at(root, "hub/models--a--b/snapshots/r/config.json", "../../refs");
    assert_int_equal(export_links(root, "snapshot", &err), FSDPCK_ERR_UNSUPPORTED);
    end_root(root);
}

static void stopping_leaves_nothing(void **state)
{
    (void)state;
    char *root = new_root("{}"), *before = tree_dump(root), *after;
    const volatile int stop = 1;
    const struct fsdpck_options opt = { .stop = &stop };
    struct fsdpck_source *src = open_under(root, "m", &opt);
    struct fsdpck_export_request req = { 0 };
    struct fsdpck_error err = { 0 };
    assert_int_equal(export_to(src, root, "o", &req, &err), FSDPCK_ERR_STOPPED);
    after = tree_dump(root);
    assert_string_equal(after, before);
    free(before);
    free(after);
    fsdpck_source_close(src);
    end_root(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_comes_out_as_it_went_in),
        cmocka_unit_test(files_are_cut_as_transformers_cuts),
        cmocka_unit_test(one_file_is_aligned_for_every_type),
        cmocka_unit_test(second_names),
        cmocka_unit_test(a_head_that_holds_the_embedding_takes_its_name),
        cmocka_unit_test(what_safetensors_lacks_is_refused_before_anything_is_written),
        cmocka_unit_test(items_are_left_behind_aloud),
        cmocka_unit_test(only_dtypes_change_in_config),
        cmocka_unit_test(casting_says_so_in_config),
        cmocka_unit_test(a_failure_anywhere_leaves_nothing),
        cmocka_unit_test(in_place_old_or_new),
        cmocka_unit_test(links_lead_nowhere_else),
        cmocka_unit_test(links_of_the_hub_are_followed),
        cmocka_unit_test(stopping_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
