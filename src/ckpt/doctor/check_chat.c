/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: that there is one, that two are the same, and that the tokenizer has their tokens. */
#include "doctor/chat.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/ioutil.h"
#include "doctor/checks.h"
#include "doctor/tokens.h"

#define FILE_NAME "chat_template.jinja"

/* Where a template may stand, in the order in which it is looked for. */
enum place { IN_CONFIG, BESIDE, IN_JSON, NPLACES };
static const char *const place_files[NPLACES] = { "tokenizer_config.json", FILE_NAME, "chat_template.json" };

/* A template, or a list of them under names: the one for chats is "default". */
static char *copy_template(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0)
            return copy_template(json_object_get(one, "template"));
    }
    return json_is_string(v) ? strdup(json_string_value(v)) : NULL;
}

/* Returns a file's text, malloc'ed, or NULL. */
static char *read_beside(struct doctor *d, const char *name, uint64_t *nbytes)
{
    char *path, *text = NULL;
    struct fsdpck_error ignored = { 0 };
    if (!fsdpck_doctor_has_file(d->model, name) || !(path = fsdpck_path_join(d->model->path, name, d->err)))
        return NULL;
    fsdpck_read_file(d->model->io, path, 1u << 24, &text, nbytes, &ignored);
    free(path);
    return text;
}

static char *read_template(struct doctor *d, enum place place)
{
    uint64_t nbytes = 0;
    if (place == IN_CONFIG)
        return copy_template(json_object_get(d->model->json[DOCTOR_TOKENIZER], "chat_template"));
    char *text = read_beside(d, place_files[place], &nbytes);
    if (place == BESIDE || !text)
        return text;
    json_t *root = json_loadb(text, nbytes, 0, NULL);
    char *out = copy_template(json_object_get(root, "chat_template"));
    json_decref(root);
    free(text);
    return out;
}

static char *find_template(struct doctor *d, enum place *place)
{
    char *text = NULL;
    for (int p = 0; p < NPLACES && !text; p++)
        if ((text = read_template(d, (enum place)p)))
            *place = (enum place)p;
    return text;
}

char *fsdpck_doctor_template(struct doctor *d)
{
    enum place place;
    return find_template(d, &place);
}

static void blame_two(struct doctor *d, enum place first, enum place other)
{
    struct doctor_words w;
    doctor_say(w.found, "another template than %s has", place_files[other]);
    doctor_say(w.expected, "one template: some programs read this one, others that file");
    doctor_say(w.mend, "remove the one that the model was not trained with");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_ERROR, place_files[first], "chat_template", &w);
}

/* Releases of transformers before 4.43, and of servers of that time, look into tokenizer_config.json alone. */
static void note_place(struct doctor *d, enum place place)
{
    struct doctor_words w;
    doctor_say(w.found, "the chat template, and none in tokenizer_config.json");
    doctor_say(w.expected, "it there too, for programs from before 2025: they make up a format, or refuse to chat");
    doctor_say(w.mend, "if such a program is to read it, put the text into tokenizer_config.json as \"chat_template\"");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_NOTE, place_files[place], "", &w);
}

bool fsdpck_doctor_templates(struct doctor *d)
{
    enum place first = IN_CONFIG;
    char *text = find_template(d, &first);
    bool found = text != NULL;
    for (int p = (int)first + 1; text && p < NPLACES; p++) {
        char *other = read_template(d, (enum place)p);
        if (other && strcmp(other, text) != 0)
            blame_two(d, first, (enum place)p);
        free(other);
    }
    if (text && first != IN_CONFIG && d->model->json[DOCTOR_TOKENIZER])
        note_place(d, first);
    free(text);
    return found;
}

/* ---- missing ---- */

static bool has_template(const struct doctor_model *m)
{
    static const char *const files[] = { FILE_NAME, "chat_template.json", "additional_chat_templates" };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (fsdpck_doctor_has_file(m, files[i]))
            return true;
    return json_object_get(m->json[DOCTOR_TOKENIZER], "chat_template") != NULL;
}

static bool sounds_like_chat(const char *name)
{
    return name && (strcasestr(name, "instruct") || strcasestr(name, "-chat"));
}

/* Only the name or the base tells that a model is for chats. */
bool fsdpck_doctor_no_template(struct doctor *d)
{
    const struct doctor_model *m = d->model;
    const char *slash = strrchr(m->path, '/'), *name = slash ? slash + 1 : m->path,
               *from = json_string_value(json_object_get(m->json[DOCTOR_CONFIG], "_name_or_path"));
    bool base = d->base && has_template(d->base);
    struct doctor_words w;
    if (!m->json[DOCTOR_TOKENIZER] || !(base || sounds_like_chat(name) || sounds_like_chat(from)))
        return false;
    if (has_template(m))
        return true;
    doctor_say(w.found, "no chat template, in this file or beside it");
    if (base)
        doctor_say(w.expected, "one, as the base has it: chat servers refuse the model, or make up a format");
    else
        doctor_say(w.expected, "one, as '%.300s' is for chats: servers refuse the model, or make up a format",
                   sounds_like_chat(name) ? name : from);
    doctor_say(w.mend, "copy chat_template.jinja, or the key chat_template, from the base");
    fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, "tokenizer_config.json", "chat_template", &w);
    return true;
}

/* ---- tokens ---- */

/* Finds the next literal "<|word|>" from *at on, and sets *at behind it. */
static bool next_token(const char **at, char *out, size_t nbytes)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    while ((*at = strstr(*at, "<|"))) {
        size_t n = strspn(*at + 2, word);
        bool closed = n && strncmp(*at + 2 + n, "|>", 2) == 0 && n + 5 <= nbytes;
        if (closed)
            snprintf(out, nbytes, "%.*s", (int)(n + 4), *at);
        *at += closed ? n + 4 : 2;
        if (closed)
            return true;
    }
    return false;
}

bool fsdpck_doctor_template_tokens(struct doctor *d)
{
    struct doctor_tokens tokens = { 0 };
    struct fsdpck_error ignored = { 0 };
    enum place place = IN_CONFIG;
    char token[128], first[128] = "", *template = find_template(d, &place);
    const char *at = template;
    uint64_t id, n = 0;
    bool found = false;
    struct doctor_words w;
    bool decided = template && fsdpck_doctor_tokens_read(d->model, &tokens, &found, &ignored) == 0 && found;
    while (decided && next_token(&at, token, sizeof token))
        if (!fsdpck_doctor_token_id(&tokens, token, &id) && n++ == 0)
            memcpy(first, token, sizeof first);
    if (n) {
        doctor_say(w.found, "'%s', which is no token of tokenizer.json (%" PRIu64 " such in the template)", first, n);
        doctor_say(w.expected, "only tokens of the tokenizer: others are cut into pieces that nothing was trained on");
        doctor_say(w.mend, "copy the tokenizer and its template from the same model");
        fsdpck_doctor_report(d, FSDPCK_SEVERITY_WARNING, place_files[place], "chat_template", &w);
    }
    fsdpck_doctor_tokens_free(&tokens);
    free(template);
    return decided;
}
