/* SPDX-License-Identifier: Apache-2.0 */
/* Text data: forms of lines, supervised tokens, bad lines, packed files, weights, documents that are too long. */
#include <jansson.h>
#include <libdeflate.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include <cmocka.h>

#include "data_case.h"

static void refused(const char *line, int code, const char *words)
{
    const struct train_data_file file = { write_text("bad.jsonl", line), 1 };
    const struct train_config config = config_of(&file, 1);
    struct fsdpck_error err = { 0 };
    struct data *d;
    assert_int_equal(data_open(&config, NVOCAB, NULL, &d, &err), code);
    assert_null(d);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not hold '%s'", err.message, words);
}

static uint32_t supervised_of(const char *lines, const char *loss_on, size_t doc)
{
    const struct train_data_file file = { write_text("forms.jsonl", lines), 1 };
    struct train_config config = config_of(&file, 1);
    config.data.loss_on = (enum chat_loss)train_config_choice("data.loss_on", loss_on);
    struct data *d = open_data(&config);
    uint32_t n = d->docs[doc].nsupervised;
    data_close(d);
    return n;
}

static void test_forms(void **state)
{
    (void)state;
    static const char all[] = CHAT COMPLETION TEXT IDS;
    uint32_t turns = supervised_of(all, "assistant", 0), last = supervised_of(all, "last_assistant", 0),
             every = supervised_of(all, "all", 0);
    assert_true(turns > last && last >= 2 && every > turns); /* "no" and its end token */
    assert_int_equal(supervised_of(all, "completion", 0), last);
    assert_true(supervised_of(all, "all", 1) > supervised_of(all, "completion", 1));
    assert_int_equal(supervised_of(all, "assistant", 1), supervised_of(all, "completion", 1));
    assert_true(supervised_of(all, "assistant", 2) >= 2);
    assert_int_equal(supervised_of(all, "all", 3), 2); /* given labels are used as they are */
}

static void test_ends_with_eos(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("t.jsonl", TEXT "{\"text\":\"plain<|im_end|>\"}\n"), 1 };
    const struct train_config config = config_of(&file, 1);
    struct data *d = open_data(&config);
    assert_int_equal(d->docs[0].ntok, d->docs[1].ntok); /* no second end token */
    assert_int_equal(d->docs[0].ids[d->docs[0].ntok - 1], 1002);
    data_close(d);
}

static void test_bad_lines(void **state)
{
    (void)state;
    refused(CHAT "{\"messages\":[]}\n", FSDPCK_ERR_FORMAT, "line 2: 'messages' is no list of at least one message");
    refused(CHAT "{\"messages\":[{\"content\":\"x\"}]}\n", FSDPCK_ERR_FORMAT, "line 2: message 0 has no role");
    refused(CHAT CHAT "{\"x\":1}\n", FSDPCK_ERR_FORMAT, "line 3: none of 'messages'");
    refused(CHAT "{\"text\":\n", FSDPCK_ERR_FORMAT, "line 2: ");
    refused(CHAT "\n" CHAT, FSDPCK_ERR_FORMAT, "line 2 is empty");
    refused(CHAT "{\"prompt\":\"a\"}\n", FSDPCK_ERR_FORMAT, "line 2: 'prompt' and 'completion' must both be strings");
    refused(CHAT "{\"input_ids\":[2000],\"labels\":[1]}\n", FSDPCK_ERR_FORMAT,
            "line 2, token 0: ids are whole numbers below the vocabulary's 1007");
    refused(CHAT "{\"messages\":[{\"role\":\"user\",\"content\":5}]}\n", FSDPCK_ERR_FORMAT, "line 2: ");
    refused(CHAT "[1]\n", FSDPCK_ERR_FORMAT, "line 2: an object is wanted");
    refused("", FSDPCK_ERR_FORMAT, "no document in it");
}

/* Of many bad lines the first one is reported, for any number of threads. */
static void test_first_bad_line(void **state)
{
    (void)state;
    enum { LINES = 2000 };
    char *lines = malloc(LINES * 64), *at = lines;
    for (int i = 0; i < LINES; i++)
        at += sprintf(at, i >= 700 ? "{}\n" : TEXT);
    refused(lines, FSDPCK_ERR_FORMAT, "line 701: ");
    free(lines);
}

static void test_skip(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("s.jsonl", "{}\n" TEXT "\n" CHAT "{\"text\":1}\n"), 1 };
    struct train_config config = config_of(&file, 1);
    config.data.on_bad_line = TRAIN_BAD_LINE_SKIP;
    for (int again = 0; again < 2; again++) { /* built, then read from the cache */
        notes[0] = '\0';
        struct data *d = open_data(&config);
        assert_int_equal(d->ndocs, 2);
        assert_non_null(strstr(notes, "3 bad lines left out"));
        data_close(d);
    }
}

static uint64_t fingerprint_of(const char *path)
{
    const struct train_data_file file = { path, 1 };
    const struct train_config config = config_of(&file, 1);
    struct data *d = open_data(&config);
    uint64_t f = data_fingerprint(d);
    data_close(d);
    return f;
}

static void test_packed_files(void **state)
{
    (void)state;
    static const char lines[] = CHAT COMPLETION TEXT;
    char packed[4096];
    uint64_t plain = fingerprint_of(write_text("a.jsonl", lines));
    size_t n = ZSTD_compress(packed, sizeof packed, lines, strlen(lines), 3);
    assert_int_equal(plain, fingerprint_of(write_bytes("a.jsonl.zst", packed, n)));
    const struct train_data_file cut_zstd = { write_bytes("cut.zst", packed, n - 5), 1 };
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    n = libdeflate_gzip_compress(c, lines, strlen(CHAT), packed, sizeof packed); /* two members */
    n += libdeflate_gzip_compress(c, lines + strlen(CHAT), strlen(lines) - strlen(CHAT), packed + n, sizeof packed - n);
    libdeflate_free_compressor(c);
    assert_int_equal(plain, fingerprint_of(write_bytes("a.jsonl.gz", packed, n)));
    const struct train_data_file cut_gzip = { write_bytes("cut.gz", packed, n - 5), 1 };
    const struct train_data_file *const cut[] = { &cut_zstd, &cut_gzip };
    for (int i = 0; i < 2; i++) {
        const struct train_config config = config_of(cut[i], 1);
        struct fsdpck_error err = { 0 };
        struct data *d;
        assert_int_equal(data_open(&config, NVOCAB, NULL, &d, &err), FSDPCK_ERR_DAMAGED);
    }
}

static void test_weights(void **state)
{
    (void)state;
    char lines[400 * 20 + 1] = "";
    for (int i = 0; i < 400; i++)
        strcat(lines, TEXT);
    const struct train_data_file files[] = { { write_text("one.jsonl", CHAT CHAT), 3 },
                                             { write_text("many.jsonl", lines), 0.25 } };
    const struct train_config config = config_of(files, 2);
    struct data *d = open_data(&config), *again = open_data(&config);
    assert_true(d->ndocs > 6 + 60 && d->ndocs < 6 + 140);
    for (size_t i = 0; i < 6; i++)
        assert_ptr_equal(d->docs[i].ids, d->docs[0].ids + (i < 3 ? 0 : d->docs[0].ntok));
    assert_int_equal(data_fingerprint(d), data_fingerprint(again));
    data_close(d);
    data_close(again);
}

/* Documents that are too long are truncated or dropped, and counted. */
/* The template of the golden knows no tools and no reasoning. Each start reports that, also when it reads the cache. */
static void test_left_out(void **state)
{
    (void)state;
    const struct train_data_file file = {
        write_text("a.jsonl", CHAT "{\"tools\":[{\"name\":\"f\"}],\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                                   "{\"role\":\"assistant\",\"thinking\":\"long\",\"content\":\"no\"}]}\n"),
        1
    };
    struct train_config config = config_of(&file, 1);
    for (int i = 0; i < 2; i++) {
        notes[0] = '\0';
        data_close(open_data(&config));
        assert_non_null(strstr(notes, "1 of 2 documents has \"tools\" that the chat template does not show"));
        assert_non_null(
            strstr(notes, "1 of 2 documents has reasoning in their last turn that the chat template does not show"));
    }
}

/* Conversations in the forms of other trainers give the same tokens. */
static void test_other_forms(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "{\"messages\":[{\"role\":\"system\",\"content\":\"be\"},{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
        "\"assistant\",\"content\":\"yes\"},{\"role\":\"user\",\"content\":\"so\\nit\"},{\"role\":\"assistant\","
        "\"content\":\"no\"}]}\n",
        "{\"conversations\":[{\"from\":\"system\",\"value\":\"be\"},{\"from\":\"human\",\"value\":\"hi\"},{\"from\":"
        "\"gpt\",\"value\":\"yes\"},{\"from\":\"human\",\"value\":\"so\\nit\"},{\"from\":\"gpt\",\"value\":\"no\"}]}\n",
        "{\"system\":\"be\",\"conversations\":[{\"role\":\"user\",\"content\":\"hi\"},{\"from\":\"gpt\",\"value\":"
        "\"yes\"},{\"from\":\"user\",\"value\":\"so\\nit\"},{\"from\":\"assistant\",\"value\":\"no\"}]}\n",
        "{\"system\":\"be\",\"history\":[[\"hi\",\"yes\"]],\"instruction\":\"so\",\"input\":\"it\",\"output\":\"no\"}"
        "\n",
    };
    struct train_data_file files[4];
    for (size_t i = 0; i < 4; i++)
        files[i] = (struct train_data_file){ write_text(i == 0   ? "a.jsonl"
                                                        : i == 1 ? "b.jsonl"
                                                        : i == 2 ? "c.jsonl"
                                                                 : "d.jsonl",
                                                        forms[i]),
                                             1 };
    struct train_config config = config_of(files, 4);
    struct data *d = open_data(&config);
    assert_int_equal(d->ndocs, 4);
    for (size_t i = 1; i < 4; i++) {
        assert_int_equal(d->docs[i].ntok, d->docs[0].ntok);
        assert_memory_equal(d->docs[i].ids, d->docs[0].ids, d->docs[0].ntok * sizeof(int32_t));
        assert_memory_equal(d->docs[i].labels, d->docs[0].labels, d->docs[0].ntok * sizeof(int32_t));
    }
    data_close(d);
}

static void refused_form(const char *text, const char *words)
{
    const struct train_data_file file = { write_text("refused", text), 1 };
    struct train_config config = config_of(&file, 1);
    struct fsdpck_error err = { 0 };
    struct data *d;
    assert_int_not_equal(data_open(&config, NVOCAB, NULL, &d, &err), 0);
    if (!strstr(err.message, words))
        fail_msg("'%s' does not hold '%s'", err.message, words);
}

static void test_refused_forms(void **state)
{
    (void)state;
    refused_form("PAR1....", "this is Parquet");
    refused_form("[{\"text\":\"x\"}", "the array is not closed");
    refused_form("[{\"text\":\"x\"},]", "a comma without an element");
    refused_form("[{\"text\":\"x\"},,{\"text\":\"x\"}]", "a comma without an element");
    refused_form("[{\"text\":\"x\"}] {}", "something stands behind the array");
    refused_form("[{\"text\":\"x\"}}", "a brace is closed");
    refused_form("[{\"text\":\"x\ny\"}]", "line 1: ");
    refused_form("[{\"text\":\"x\"}, {\"txt\":\"x\"}]", "line 2: none of");
    refused_form("[{\"text\":[1,]}]", "line 1: ");
    refused_form("[]", "no document in it");
    refused_form("{\"conversations\":[{\"from\":\"function_call\",\"value\":\"x\"}]}\n",
                 "is from 'function_call', which is none of");
    refused_form("{\"conversations\":[{\"from\":\"human\"}]}\n", "entry 0 has no 'from' and 'value'");
    refused_form("{\"instruction\":\"x\"}\n", "'instruction' and 'output' must both be strings");
}

/* Examples give the same documents as lines or as elements of an array, over several lines or in one, also beyond the
 * part of a file that is in memory. */
static void test_array(void **state)
{
    (void)state;
    enum { N = 4000, MOST = 200 };
    char *lines = malloc(N * MOST), *array = malloc(N * (MOST + 40)), *l = lines, *a = array;
    a += sprintf(a, " \n[");
    for (int i = 0; i < N; i++) {
        l += sprintf(l, "{\"text\":\"%d, ] } \\\" [ {\",\"more\":[[1,2],{\"a\":\"\\\\\"}]}\n", i);
        a += sprintf(a, "%s{\n  \"text\" :\t\"%d, ] } \\\" [ {\",\r\n\"more\": [ [1,\n2], {\"a\":\"\\\\\"} ]\n}",
                     i ? i % 3 ? "," : "\n,\n" : "", i);
    }
    sprintf(a, "\n]\n\n");
    const struct train_data_file as_lines = { write_text("lines.jsonl", lines), 1 },
                                 as_array = { write_text("array.json", array), 1 };
    const struct train_config one = config_of(&as_lines, 1), other = config_of(&as_array, 1);
    struct data *x = open_data(&one), *y = open_data(&other);
    assert_int_equal(x->ndocs, N);
    assert_int_equal(y->ndocs, N);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(x->docs[i].ntok, y->docs[i].ntok);
        assert_memory_equal(x->docs[i].ids, y->docs[i].ids, x->docs[i].ntok * sizeof *x->docs[i].ids);
    }
    data_close(x);
    data_close(y);
    free(lines);
    free(array);
}

/* Columns with other names give the same documents, for text and for tokens. A missing column is reported. */
static void test_columns(void **state)
{
    (void)state;
    const struct train_data_file plain = {
        write_text("plain.jsonl", COMPLETION "{\"prompt\":\"a\",\"completion\":\"b\"}\n"), 1
    };
    const struct train_data_file named = {
        write_text("named.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\"}\n{\"answer\":\"b\",\"prompt\":\"z\","
                                  "\"question\":\"a\",\"messages\":[],\"text\":\"t\"}\n"),
        1
    };
    struct train_config config = config_of(&plain, 1);
    struct fsdpck_error err = { 0 };
    struct data *x = open_data(&config), *y;
    config = config_of(&named, 1);
    config.data.columns = json_pack("{s:s,s:s}", "prompt", "question", "completion", "answer");
    assert_int_not_equal(data_open(&config, NVOCAB, NULL, &y, &err), 0);
    if (!strstr(err.message, "line 1: there is no column '"))
        fail_msg("%s", err.message);
    config.data.on_bad_line = TRAIN_BAD_LINE_SKIP;
    y = open_data(&config);
    assert_int_equal(y->ndocs, 1);
    assert_int_equal(y->docs[0].ntok, x->docs[1].ntok);
    assert_memory_equal(y->docs[0].ids, x->docs[1].ids, y->docs[0].ntok * sizeof *y->docs[0].ids);
    data_close(y);
    json_decref(config.data.columns);
    /* exchanged columns, and another cache */
    config.data.columns = json_pack("{s:s,s:s}", "prompt", "completion", "completion", "prompt");
    y = open_data(&config);
    assert_int_equal(y->ndocs, 1);
    assert_memory_not_equal(y->docs[0].ids, x->docs[1].ids, y->docs[0].ntok * sizeof *y->docs[0].ids);
    data_close(y);
    json_decref(config.data.columns);
    data_close(x);
}

static void test_token_columns(void **state)
{
    (void)state;
    const struct train_data_file file = { write_text("tokens.jsonl", "{\"tokens\":[5,6,7],\"mask\":[-100,6,7]}\n"), 1 };
    struct train_config config = config_of(&file, 1);
    config.data.columns = json_pack("{s:s,s:s}", "input_ids", "tokens", "labels", "mask");
    struct data *d = open_data(&config);
    assert_int_equal(d->docs[0].ntok, 3);
    assert_int_equal(d->docs[0].nsupervised, 2);
    data_close(d);
    json_decref(config.data.columns);
}

static void test_too_long(void **state)
{
    (void)state;
    char line[2000] = "{\"text\":\"";
    for (int i = 0; i < 300; i++)
        strcat(line, "x y ");
    strcat(line, "\"}\n" TEXT);
    const struct train_data_file file = { write_text("l.jsonl", line), 1 };
    struct train_config config = config_of(&file, 1);
    struct train_data_facts facts;
    struct data *d = open_data(&config);
    data_describe(d, &facts);
    assert_true(facts.ndocs == 2 && facts.longest_ntok == 128);
    assert_non_null(strstr(notes, "of 2 documents 1 cut at data.seq_len (128 tokens)"));
    data_close(d);
    config.data.too_long = TRAIN_TOO_LONG_DROP;
    d = open_data(&config);
    data_describe(d, &facts);
    assert_true(facts.ndocs == 1 && facts.longest_ntok < 128);
    assert_non_null(strstr(notes, "of 2 documents 1 left out (longer than data.seq_len, 128 tokens: data.too_long)"));
    data_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ends_with_eos, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_bad_line, setup, teardown),
        cmocka_unit_test_setup_teardown(test_skip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_packed_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(test_left_out, setup, teardown),
        cmocka_unit_test_setup_teardown(test_other_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused_forms, setup, teardown),
        cmocka_unit_test_setup_teardown(test_array, setup, teardown),
        cmocka_unit_test_setup_teardown(test_columns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_token_columns, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_long, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
