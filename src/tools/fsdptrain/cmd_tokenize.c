/* SPDX-License-Identifier: Apache-2.0 */
/* `fsdptrain tokenize`: shows ids, tokens and loss mask as a model sees them, or the pictures of a pipeline in their
 * buckets. */
#include "commands.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <train/chat.h>
#include <train/config.h>
#include <train/image.h>
#include <train/lines.h>

#include "common/json_out.h"
#include "common/model_path.h"
#include "common/report.h"
#include "tokenize_pictures.h"

struct tokenize_args {
    bool json, chat, special, text;
    const char *loss_on;
    uint32_t from_line, nlines; /* nlines 0: all */
    uint32_t resolution, max_tokens;
    const char *trigger_word, *aspect_ratio_buckets;
    bool use_aspect_ratio_buckets;
};

#define AT(field) offsetof(struct tokenize_args, field)

static const struct option tokenize_options[] = {
    { .name = "chat",
      .type = OPTION_FLAG,
      .offset = AT(chat),
      .help = "read lines of JSON as in data.train, apply the chat template, and show the loss mask" },
    { .name = "loss-on",
      .type = OPTION_CHOICE,
      .offset = AT(loss_on),
      .value = "assistant|last_assistant|completion|all",
      .help = "tokens that the loss mask marks",
      .usual = "assistant",
      .needs = "chat" },
    { .name = "from-line",
      .type = OPTION_COUNT,
      .offset = AT(from_line),
      .value = "N",
      .help = "first line to show",
      .usual = "1",
      .needs = "chat" },
    { .name = "lines",
      .type = OPTION_COUNT,
      .offset = AT(nlines),
      .value = "N",
      .help = "show at most N lines",
      .computed = "all",
      .needs = "chat" },
    { .name = "no-special",
      .type = OPTION_FLAG,
      .offset = AT(special),
      .help = "leave out special tokens such as <s> around a text",
      .excludes = "chat" },
    { .name = "text",
      .type = OPTION_FLAG,
      .offset = AT(text),
      .help = "take TEXT_OR_FILE as text, even if it names a file" },
    { .name = "resolution",
      .type = OPTION_COUNT,
      .offset = AT(resolution),
      .value = "SIDE",
      .help = "pictures: image.resolution, which makes the buckets",
      .computed = OPTION_TEXT(IMAGE_DEFAULT_RESOLUTION),
      .excludes = "chat" },
    { .name = "use-aspect-ratio-buckets",
      .type = OPTION_FLAG,
      .offset = AT(use_aspect_ratio_buckets),
      .help = "pictures: image.use_aspect_ratio_buckets, for diffusers' buckets",
      .excludes = "chat" },
    { .name = "aspect-ratio-buckets",
      .type = OPTION_STRING,
      .offset = AT(aspect_ratio_buckets),
      .value = "H,W;H,W",
      .help = "pictures: image.aspect_ratio_buckets, the sizes themselves",
      .excludes = "use-aspect-ratio-buckets" },
    { .name = "max-sequence-length",
      .type = OPTION_COUNT,
      .offset = AT(max_tokens),
      .value = "N",
      .help = "pictures: tokens of a caption that are read",
      .computed = OPTION_TEXT(IMAGE_DEFAULT_TOKENS),
      .excludes = "chat" },
    { .name = "trigger-word",
      .type = OPTION_STRING,
      .offset = AT(trigger_word),
      .value = "WORD",
      .help = "pictures: image.trigger_word, which is put into the captions",
      .excludes = "chat" },
    { .name = "json", .type = OPTION_FLAG, .offset = AT(json), .help = "print the result as one JSON object" },
};

/* Prints each example at once, or collects them for --json. */
struct example_printer {
    const struct tokenize_args *args;
    const struct tokenizer *tokenizer;
    json_t *examples;
    bool complete;
};

static void print_token(const struct example_printer *s, uint32_t id, const uint8_t *supervised)
{
    json_t *token = json_out_text(tokenizer_token(s->tokenizer, id));
    printf("%8u  %s", id, supervised ? *supervised ? "*  " : "   " : "");
    json_out_write(token);
    puts(tokenizer_is_special(s->tokenizer, id) ? "  special" : "");
    json_decref(token);
}

static void keep_example(struct example_printer *s, const uint32_t *ids, const uint8_t *supervised, size_t count)
{
    json_t *o = json_object(), *list = json_array(), *tokens = json_array(), *mask = json_array();
    for (size_t i = 0; i < count; i++) {
        s->complete &= json_out_append(list, json_out_u64(ids[i]));
        s->complete &= json_out_append(tokens, json_out_text(tokenizer_token(s->tokenizer, ids[i])));
        if (supervised)
            s->complete &= json_out_append(mask, json_out_u64(supervised[i]));
    }
    s->complete &= json_out_put(o, "ids", list);
    s->complete &= json_out_put(o, "tokens", tokens);
    if (supervised)
        s->complete &= json_out_put(o, "mask", mask);
    else
        json_decref(mask);
    s->complete &= json_out_append(s->examples, o);
}

static void show_tokens(struct example_printer *s, const uint32_t *ids, const uint8_t *supervised, size_t count)
{
    if (s->args->json) {
        keep_example(s, ids, supervised, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        print_token(s, ids[i], supervised ? &supervised[i] : NULL);
}

static int show_text(struct example_printer *s, const char *text, size_t nbytes, struct fsdpck_error *err)
{
    struct token_list list = { 0 };
    struct encoder *e;
    int rc = encoder_new(s->tokenizer, &e, err);
    if (!rc)
        rc = tokenizer_encode(e, text, nbytes, s->args->special ? 0 : TOKENIZER_SPECIAL, &list, err);
    if (!rc)
        show_tokens(s, list.ids, NULL, list.count);
    token_list_free(&list);
    encoder_free(e);
    return rc;
}

/* Prints a note on stderr, as notes are not part of the result. */
static void print_chat_note(const char *file, uint64_t line, enum chat_note note)
{
    struct report report = { 0 };
    char what[600];
    snprintf(what, sizeof what, "%.200s, line %llu: documents like this one have %s", file, (unsigned long long)line,
             chat_note_text(note));
    report_note(&report, what);
}

static int show_line(struct example_printer *s, struct chat_coder *coder, const char *file, uint64_t line,
                     const char *text, size_t nbytes, struct fsdpck_error *err)
{
    json_error_t why;
    struct chat_tokens tokens;
    struct fsdpck_error own = { 0 };
    char what[1400];
    json_t *example = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!example)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, file, "line %llu: %s", (unsigned long long)line, why.text);
    int rc = chat_encode(coder, example, (enum chat_loss)train_config_choice("data.loss_on", s->args->loss_on), &tokens,
                         &own);
    if (rc)
        rc = fsdpck_error_set(err, rc, file, "line %llu: %.600s", (unsigned long long)line,
                              fsdpck_error_format(&own, what, sizeof what));
    if (rc)
        fsdpck_error_hint(err, "%s", own.hint);
    else if (!s->args->json && line > 1)
        printf("\n");
    for (int i = 0; i < CHAT_NNOTES && !rc; i++) {
        if (tokens.notes >> i & 1)
            print_chat_note(file, line, (enum chat_note)i);
    }
    if (!rc)
        show_tokens(s, tokens.ids, tokens.supervised, tokens.count);
    json_decref(example);
    return rc;
}

static int show_file(struct example_printer *s, struct chat_coder *coder, const char *file, struct fsdpck_error *err)
{
    struct train_lines *lines;
    const char *line;
    size_t nbytes;
    uint64_t number;
    uint32_t nshown = 0;
    int rc = train_lines_open(file, &lines, err);
    while (!rc && (!s->args->nlines || nshown < s->args->nlines) &&
           !(rc = train_lines_next(lines, &line, &nbytes, &number, err)) && line) {
        if (number < s->args->from_line)
            continue;
        rc = show_line(s, coder, file, number, line, nbytes, err);
        nshown++;
    }
    train_lines_close(lines);
    return rc;
}

static bool is_file(const struct tokenize_args *args, const char *typed)
{
    struct stat st;
    return !args->text && stat(typed, &st) == 0 && S_ISREG(st.st_mode);
}

static bool ends_as_a_file(const char *typed)
{
    static const char *const ends[] = { ".txt", ".json", ".jsonl", ".gz", ".zst", ".md", ".csv", ".parquet" };
    size_t n = strlen(typed);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (n > strlen(ends[i]) && strcmp(typed + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    }
    return false;
}

/* Returns true if typed is a path into an existing folder. */
static bool has_folder(const char *typed)
{
    struct stat st;
    char folder[PATH_MAX];
    const char *slash = strrchr(typed, '/');
    size_t n = slash ? (size_t)(slash - typed) : 0;
    if (n == 0 || n >= sizeof folder)
        return slash == typed;
    memcpy(folder, typed, n);
    folder[n] = '\0';
    return stat(folder, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Refuses a word that looks like a path but names no file, because it is more likely a typo than text. */
static int refuse_name(const struct tokenize_args *args, const char *typed, struct fsdpck_error *err)
{
    struct stat st;
    bool there = stat(typed, &st) == 0, one_word = *typed && !typed[strcspn(typed, " \t\r\n{")];
    if (args->text || is_file(args, typed) || (!there && !(one_word && (ends_as_a_file(typed) || has_folder(typed)))))
        return 0;
    fsdpck_error_set(err, there ? FSDPCK_ERR_FORMAT : FSDPCK_ERR_MISSING, typed, "%s",
                     there ? "this is no file; a file is wanted, or text" : "there is no such file");
    fsdpck_error_hint(err, "--text tokenizes the name itself");
    return err->code;
}

static int show_lines(struct example_printer *s, const struct chat *chat, const char *typed, struct fsdpck_error *err)
{
    struct chat_coder *coder;
    int rc = chat_coder_new(chat, &coder, err);
    if (!rc)
        rc = is_file(s->args, typed) ? show_file(s, coder, typed, err)
                                     : show_line(s, coder, "the text", 1, typed, strlen(typed), err);
    if (rc && !s->args->text && !is_file(s->args, typed) && *typed != '{')
        fsdpck_error_hint(err, "there is no file of that name: it was taken for the text itself");
    chat_coder_free(coder);
    return rc;
}

/* Returns the contents of the file if typed names one, else a copy of typed. */
static int take_text(const struct tokenize_args *args, const char *typed, char **text, size_t *nbytes,
                     struct fsdpck_error *err)
{
    struct stat st;
    bool file = is_file(args, typed) && stat(typed, &st) == 0;
    size_t n = file ? (size_t)st.st_size : strlen(typed);
    FILE *f = file ? fopen(typed, "rbe") : NULL;
    if (file && !f)
        return fsdpck_error_sys(err, errno, typed, "open");
    *text = malloc(n + 1);
    if (*text && f)
        n = fread(*text, 1, n, f);
    else if (*text)
        memcpy(*text, typed, n);
    *nbytes = n;
    int rc = !*text ? fsdpck_error_nomem(err, n) : f && ferror(f) ? fsdpck_error_sys(err, errno, typed, "read") : 0;
    if (f)
        fclose(f);
    return rc;
}

static bool is_for_pictures(const struct tokenize_args *args)
{
    return args->resolution || args->max_tokens || args->trigger_word || args->use_aspect_ratio_buckets ||
           args->aspect_ratio_buckets;
}

static int check_pictures(const struct tokenize_args *args, bool is_pipeline, struct fsdpck_error *err)
{
    if (!is_pipeline && is_for_pictures(args))
        return fsdpck_error_set(
            err, FSDPCK_ERR_USAGE, NULL,
            "--resolution, --use-aspect-ratio-buckets, --aspect-ratio-buckets, --max-sequence-length and "
            "--trigger-word are for a pipeline's pictures");
    if (is_pipeline && (args->chat || args->special || args->text))
        return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                                "--chat, --no-special and --text are for texts, not for a pipeline's pictures");
    return 0;
}

static int run_pictures(const struct tokenize_args *args, const char *pipeline, const char *from)
{
    const struct tokenize_pictures_args of_pictures = { .json = args->json,
                                                        .resolution = args->resolution,
                                                        .max_tokens = args->max_tokens,
                                                        .trigger_word = args->trigger_word,
                                                        .use_aspect_ratio_buckets = args->use_aspect_ratio_buckets,
                                                        .aspect_ratio_buckets = args->aspect_ratio_buckets };
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    int status;
    return tokenize_pictures_run(&of_pictures, pipeline, from, &status, &err) ? report_error(&report, &err) : status;
}

static int run_texts(const struct tokenize_args *args, const char *model, const char *typed)
{
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    struct chat *chat = NULL;
    struct example_printer s = { .args = args, .complete = true, .examples = args->json ? json_array() : NULL };
    char *text = NULL;
    size_t nbytes = 0;
    int rc = refuse_name(args, typed, &err);
    if (!rc)
        rc = chat_open(model, &chat, &err);
    if (!rc && !args->chat)
        rc = take_text(args, typed, &text, &nbytes, &err);
    s.tokenizer = rc ? NULL : chat_tokenizer(chat);
    if (!rc)
        rc = args->chat ? show_lines(&s, chat, typed, &err) : show_text(&s, text, nbytes, &err);
    chat_close(chat);
    free(text);
    if (rc || !args->json) {
        json_decref(s.examples);
        return rc ? report_error(&report, &err) : EXIT_DONE;
    }
    json_t *o = json_object();
    s.complete &= json_out_put(o, "examples", s.examples);
    return json_out_print(o, s.complete, EXIT_DONE);
}

static int run(void *ctx, const char *const *at)
{
    const struct tokenize_args *args = ctx;
    struct fsdpck_error err = { 0 };
    struct report report = { 0 };
    char model[PATH_MAX];
    int rc = model_path_resolve(at[0], model, sizeof model, &err);
    const bool is_pipeline = !rc && image_is_pipeline(model);
    if (!rc)
        rc = check_pictures(args, is_pipeline, &err);
    if (rc)
        return report_error(&report, &err);
    return is_pipeline ? run_pictures(args, model, at[1]) : run_texts(args, model, at[1]);
}

int cmd_tokenize(const struct command *self, int argc, char **argv)
{
    struct tokenize_args args = { 0 };
    const struct option_group groups[] = { { "Options", tokenize_options,
                                             sizeof tokenize_options / sizeof tokenize_options[0], &args } };
    const struct command_line line = {
        .command = self,
        .positionals = "MODEL TEXT_OR_FILE",
        .groups = groups,
        .ngroups = 1,
        .notes = "Each token takes one line: its id, a star where the loss is computed on it (with --chat), and "
                 "the token as tokenizer.json has it.\n"
                 "Of a pipeline that makes pictures, TEXT_OR_FILE is a folder of pictures, or JSONL: each takes one "
                 "line with its size, its bucket, and the caption with its number of tokens.",
        .examples = "fsdptrain tokenize model/ 'Hello, world'\n"
                    "fsdptrain tokenize model/ chat.jsonl --chat\n"
                    "fsdptrain tokenize model/ chat.jsonl --chat --from-line 3 --lines 1\n"
                    "fsdptrain tokenize flux2-klein/ pictures/ --resolution 768",
    };
    return options_run(&line, argc, argv, run, &args);
}
