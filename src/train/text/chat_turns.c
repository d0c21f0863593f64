/* Which parts of a rendered conversation the assistant wrote. A template with {% generation %} says so itself; for others, a turn is what it adds to the
 * turns before it. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat_impl.h"
#include "text/maps.h"

void chat_turns_free(struct chat_turns *t)
{
    jinja_output_free(&t->full);
    jinja_output_free(&t->part);
    jinja_output_free(&t->other);
    free(t->owned);
    *t = (struct chat_turns){ 0 };
}

int chat_run(const struct chat *c, json_t *messages, json_t *tools, bool generation_prompt, struct jinja_output *out, struct fsdpck_error *err)
{
    json_t *context = json_object();
    if (!c->jinja) {
        json_decref(context);
        fsdpck_error_set(err, FSDPCK_ERR_MISSING, NULL, "the model's folder has no chat template, and conversations need one");
        fsdpck_error_hint(err, "put a chat_template.jinja into it, or give the data as prompt and completion, or as text");
        return err ? err->code : FSDPCK_ERR_MISSING;
    }
    bool ok = context && json_object_update(context, c->special) == 0 && json_object_set(context, "messages", messages) == 0 &&
              json_object_set_new(context, "add_generation_prompt", json_boolean(generation_prompt)) == 0 &&
              json_object_set_new(context, "documents", json_null()) == 0 && json_object_set_new(context, "tools", tools ? json_incref(tools) : json_null()) == 0;
    int rc = ok ? jinja_render(c->jinja, context, c->now, out, err) : fsdpck_error_nomem(err, 1024);
    json_decref(context);
    return rc;
}

/* The first n messages; with `content` in place of that of the last (NULL: as it is). Owned by the caller. */
static json_t *first_messages(json_t *messages, size_t n, size_t replaced, const char *content)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < n; i++) {
        json_t *m = json_array_get(messages, i);
        if (content && i == replaced) {
            m = json_copy(m);
            json_object_set_new(m, "content", json_string(content));
            json_array_append_new(list, m);
        } else {
            json_array_append(list, m);
        }
    }
    return list;
}

static int run_first(const struct chat *c, json_t *messages, size_t n, size_t replaced, const char *content, bool prompt, json_t *tools, struct jinja_output *out,
                     struct fsdpck_error *err)
{
    json_t *list = first_messages(messages, n, replaced, content);
    int rc = list ? chat_run(c, list, tools, prompt, out, err) : fsdpck_error_nomem(err, 64);
    json_decref(list);
    return rc;
}

static size_t common_prefix(const struct jinja_output *a, const struct jinja_output *b)
{
    size_t n = 0, most = a->nbytes < b->nbytes ? a->nbytes : b->nbytes;
    while (n < most && a->text[n] == b->text[n])
        n++;
    return n;
}

static size_t common_suffix(const struct jinja_output *a, const struct jinja_output *b)
{
    size_t n = 0, most = a->nbytes < b->nbytes ? a->nbytes : b->nbytes;
    while (n < most && a->text[a->nbytes - 1 - n] == b->text[b->nbytes - 1 - n])
        n++;
    return n;
}

static bool begins_with(const struct jinja_output *text, const char *s, size_t n)
{
    return text->nbytes >= n && memcmp(text->text, s, n) == 0;
}

/* Where turn i begins: behind the prompt for it; or, where that is no beginning of the text (a template that puts a system turn before an assistant who speaks
 * first), where two contents first differ. t->part holds the turns up to i. */
static int turn_begin(const struct chat *c, json_t *messages, size_t i, json_t *tools, struct chat_turns *t, size_t *begin, struct fsdpck_error *err)
{
    struct jinja_output b = { 0 };
    int rc = 0;
    t->other.nbytes = 0;
    if (i > 0)
        rc = run_first(c, messages, i, 0, NULL, true, tools, &t->other, err);
    *begin = t->other.nbytes;
    if (rc || (*begin > 0 && begins_with(&t->part, t->other.text, *begin)))
        return rc;
    rc = run_first(c, messages, i + 1, i, "A", false, tools, &t->other, err);
    if (!rc)
        rc = run_first(c, messages, i + 1, i, "B", false, tools, &b, err);
    *begin = rc ? 0 : common_prefix(&t->other, &b);
    jinja_output_free(&b);
    return rc;
}

static size_t without_line_ends(const char *s, size_t from, size_t to)
{
    while (to > from && s[to - 1] == '\n')
        to--;
    return to;
}

/* A turn that is rendered otherwise when others follow it (reasoning that is left out): in the whole text, its content lies where two contents differ, and
 * what follows the content where the turn is last is its end. */
static int inner_turn(const struct chat *c, json_t *messages, size_t i, json_t *tools, struct chat_turns *t, struct jinja_span *span, struct fsdpck_error *err)
{
    struct jinja_output a = { 0 }, b = { 0 };
    size_t n = json_array_size(messages), begin = 0, behind = 0, end = 0, tail = 0;
    int rc = run_first(c, messages, i + 1, i, "A", false, tools, &a, err);
    if (!rc)
        rc = run_first(c, messages, i + 1, i, "B", false, tools, &b, err);
    if (!rc) {
        size_t suffix = common_suffix(&a, &b);
        tail = without_line_ends(a.text, a.nbytes - suffix, a.nbytes) - (a.nbytes - suffix);
        rc = grow((void **)&t->other.text, &t->other.capacity, tail + 1, 1) ? 0 : fsdpck_error_nomem(err, tail);
    }
    if (!rc && tail) {
        memcpy(t->other.text, a.text + a.nbytes - common_suffix(&a, &b), tail);
        rc = run_first(c, messages, n, i, "A", false, tools, &a, err);
    }
    if (!rc && tail)
        rc = run_first(c, messages, n, i, "B", false, tools, &b, err);
    if (!rc && tail) {
        begin = common_prefix(&a, &b);
        behind = common_suffix(&a, &b);
        end = t->full.nbytes >= behind ? t->full.nbytes - behind : 0;
    }
    bool found = !rc && tail && begin <= end && begins_with(&t->full, a.text, begin) && behind >= tail &&
                 memcmp(t->full.text + end, a.text + a.nbytes - behind, behind) == 0 && memcmp(t->full.text + end, t->other.text, tail) == 0;
    *span = (struct jinja_span){ begin, end + tail };
    jinja_output_free(&a);
    jinja_output_free(&b);
    if (rc || found)
        return rc;
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL, "message %zu: the template renders this turn otherwise when others follow it, so that it cannot be told which tokens it has", i);
    fsdpck_error_hint(err, "use data.loss_on \"last_assistant\", or a template with {%% generation %%}");
    return err ? err->code : FSDPCK_ERR_UNSUPPORTED;
}

static int add_turn(const struct chat *c, json_t *messages, size_t i, json_t *tools, struct chat_turns *t, struct fsdpck_error *err)
{
    struct jinja_span span = { 0 };
    int rc = run_first(c, messages, i + 1, 0, NULL, false, tools, &t->part, err);
    if (rc)
        return rc;
    size_t end = without_line_ends(t->part.text, 0, t->part.nbytes);
    if (begins_with(&t->full, t->part.text, end)) {
        rc = turn_begin(c, messages, i, tools, t, &span.begin, err);
        span.end = end;
    } else {
        rc = inner_turn(c, messages, i, tools, t, &span, err);
    }
    if (rc || span.end <= span.begin)
        return rc;
    if (!grow((void **)&t->owned, &t->owned_capacity, t->nspans + 1, sizeof *t->owned))
        return fsdpck_error_nomem(err, sizeof span);
    t->owned[t->nspans++] = span;
    t->spans = t->owned;
    return 0;
}

static int check_messages(json_t *messages, struct fsdpck_error *err)
{
    size_t i;
    json_t *m;
    if (json_array_size(messages) == 0)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "'messages' is no list of at least one message");
    json_array_foreach (messages, i, m) {
        if (!json_is_string(json_object_get(m, "role")))
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "message %zu has no role", i);
        if (json_object_size(m) < 2) /* many templates would make an empty turn of it */
            return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL, "message %zu has a role and nothing else", i);
    }
    return 0;
}

int chat_find_turns(const struct chat *c, json_t *messages, json_t *tools, struct chat_turns *out, struct fsdpck_error *err)
{
    size_t i;
    json_t *m;
    int rc = check_messages(messages, err);
    out->nspans = 0;
    out->spans = NULL;
    if (!rc)
        rc = chat_run(c, messages, tools, false, &out->full, err);
    if (rc || jinja_has_generation(c->jinja)) {
        out->spans = out->full.spans;
        out->nspans = rc ? 0 : out->full.nspans;
        return rc;
    }
    json_array_foreach (messages, i, m) {
        if (!rc && strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0)
            rc = add_turn(c, messages, i, tools, out, err);
    }
    return rc;
}
