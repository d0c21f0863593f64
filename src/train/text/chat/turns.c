/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the assistant's parts of a rendered conversation. A template with {% generation %} marks them itself. For other
 * templates, compares renderings. A turn begins where the rendering of the messages before it (or of the generation
 * prompt) ends, and it ends where the rendering of the messages up to it ends. If a template renders a turn differently
 * when others follow, the texts of a message are replaced: text that stays the same lies outside the turn. If no method
 * is conclusive, the example is rejected. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat/impl.h"
#include "text/maps.h"

/* The search for one turn. */
struct search {
    const struct chat *chat;
    json_t *messages, *tools;
    size_t turn; /* index of its message */
    const struct jinja_output *full;
    struct jinja_output prompt,
        history; /* rendered from the messages before it: with the generation prompt, and without */
    struct jinja_output until, scratch;
    bool has_prompt, has_history;
};

/* The place of a message's words in a text: number of bytes before them and behind them. `located` false: the text does
 * not contain them, or the template rejected the messages. */
struct bounds {
    size_t before, behind;
    bool located;
};

void chat_turns_free(struct chat_turns *t)
{
    jinja_output_free(&t->full);
    free(t->owned);
    *t = (struct chat_turns){ 0 };
}

static void search_free(struct search *s)
{
    jinja_output_free(&s->prompt);
    jinja_output_free(&s->history);
    jinja_output_free(&s->until);
    jinja_output_free(&s->scratch);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t common_prefix(const char *a, size_t na, const char *b, size_t nb)
{
    size_t n = 0, most = smaller(na, nb);
    while (n < most && a[n] == b[n])
        n++;
    return n;
}

static size_t common_suffix(const struct jinja_output *a, const struct jinja_output *b)
{
    size_t n = 0, most = smaller(a->nbytes, b->nbytes);
    while (n < most && a->text[a->nbytes - 1 - n] == b->text[b->nbytes - 1 - n])
        n++;
    return n;
}

static bool begins_with(const struct jinja_output *text, const struct jinja_output *beginning, size_t n)
{
    return n > 0 && text->nbytes >= n && memcmp(text->text, beginning->text, n) == 0;
}

static size_t without_line_ends(const char *s, size_t from, size_t to)
{
    while (to > from && s[to - 1] == '\n')
        to--;
    return to;
}

static int render(struct search *s, size_t count, bool prompt, struct jinja_output *out, bool *rendered,
                  struct fsdpck_error *err)
{
    const struct chat_part part = { .count = count, .prompt = prompt };
    return chat_run_first(s->chat, s->messages, s->tools, &part, out, rendered, err);
}

/* Locates the words of message `varied` in `text`, the rendering of the first `count` messages. Compares it with two
 * other wordings: a single one may begin or end with the same letter as the words. */
static int find_bounds(struct search *s, const struct jinja_output *text, size_t count, bool prompt, size_t varied,
                       struct bounds *out, struct fsdpck_error *err)
{
    int rc = 0;
    *out = (struct bounds){ text->nbytes, text->nbytes, true };
    for (int i = 0; i < 2 && !rc && out->located; i++) {
        const struct chat_part part = { count, prompt, varied, i ? "B" : "A" };
        rc = chat_run_first(s->chat, s->messages, s->tools, &part, &s->scratch, &out->located, err);
        if (rc || !out->located)
            break;
        out->before = smaller(out->before, common_prefix(text->text, text->nbytes, s->scratch.text, s->scratch.nbytes));
        out->behind = smaller(out->behind, common_suffix(text, &s->scratch));
    }
    out->located = !rc && out->located && out->before < text->nbytes;
    return rc;
}

/* Length of the generation prompt. */
static size_t prompt_nbytes(const struct search *s)
{
    bool adds = s->has_prompt && s->has_history && begins_with(&s->prompt, &s->history, s->history.nbytes);
    return adds ? s->prompt.nbytes - s->history.nbytes : 0;
}

static bool ends_with_prompt(const struct search *s, const char *text, size_t nbytes)
{
    size_t n = prompt_nbytes(s);
    return n > 0 && nbytes >= n && memcmp(text + nbytes - n, s->prompt.text + s->prompt.nbytes - n, n) == 0;
}

/* Compares the text behind the previous message's words: the prompt contains the same text, and ends where the turn
 * begins. Needed for templates that render earlier messages differently once an answer follows (Mistral puts the system
 * prompt into the last user message, but only if no message follows it). */
static int begin_behind_previous(struct search *s, size_t *begin, bool *found, struct fsdpck_error *err)
{
    struct bounds asked, whole;
    int rc = find_bounds(s, &s->prompt, s->turn, true, s->turn - 1, &asked, err);
    if (!rc && asked.located)
        rc = find_bounds(s, s->full, json_array_size(s->messages), false, s->turn - 1, &whole, err);
    if (rc || !asked.located || !whole.located)
        return rc;
    size_t shared = common_prefix(s->prompt.text + s->prompt.nbytes - asked.behind, asked.behind,
                                  s->full->text + s->full->nbytes - whole.behind, whole.behind);
    *begin = s->full->nbytes - whole.behind + shared;
    *found = asked.behind > 0 && shared + prompt_nbytes(s) >= asked.behind && shared > 0;
    return 0;
}

/* The assistant speaks first. No message precedes the turn, so take the generation prompt behind a made-up question. */
static int begin_of_first(struct search *s, size_t words, size_t *begin, bool *found, struct fsdpck_error *err)
{
    json_t *question = json_pack("[{s:s,s:s}]", "role", "user", "content", "A");
    struct search asked = { .chat = s->chat, .messages = question, .tools = s->tools };
    int rc = question ? render(&asked, 1, true, &asked.prompt, &asked.has_prompt, err) : fsdpck_error_nomem(err, 64);
    if (!rc)
        rc = render(&asked, 1, false, &asked.history, &asked.has_history, err);
    size_t n = rc ? 0 : prompt_nbytes(&asked), at = words;
    while (n && at >= n && !ends_with_prompt(&asked, s->full->text, at))
        at--;
    while (!n && words > 0 &&
           s->full->text[words - 1] == ' ') /* most tokenizers make the space before a word part of the word */
        words--;
    *begin = n && at >= n ? at : words;
    *found = !rc;
    jinja_output_free(&asked.prompt);
    jinja_output_free(&asked.history);
    json_decref(question);
    return rc;
}

static int find_begin(struct search *s, size_t *begin, bool *found, struct fsdpck_error *err)
{
    struct bounds words;
    int rc = s->turn ? render(s, s->turn, true, &s->prompt, &s->has_prompt, err) : 0;
    *found = !rc && s->has_prompt && begins_with(s->full, &s->prompt, s->prompt.nbytes);
    *begin = s->prompt.nbytes;
    if (rc || *found)
        return rc;
    rc = find_bounds(s, s->full, json_array_size(s->messages), false, s->turn, &words, err);
    if (!rc && s->turn)
        rc = render(s, s->turn, false, &s->history, &s->has_history, err);
    if (rc || !words.located)
        return rc;
    if (s->has_prompt && s->has_history &&
        begins_with(s->full, &s->history, s->history.nbytes)) { /* prompt and turn share a beginning, then differ */
        *begin = common_prefix(s->prompt.text, s->prompt.nbytes, s->full->text, s->full->nbytes);
        *found = *begin > s->history.nbytes;
    }
    if (!*found && s->has_prompt)
        rc = begin_behind_previous(s, begin, found, err);
    if (!rc && !*found && s->turn == 0)
        return begin_of_first(s, words.before, begin, found, err);
    if (!rc && !*found) { /* accept words that directly follow the generation prompt */
        *begin = words.before;
        *found = ends_with_prompt(s, s->full->text, words.before);
    }
    *begin = smaller(*begin, words.before);
    return rc;
}

/* If a tag is open at n ("<|en"), where it begins; otherwise n. */
static size_t before_open_tag(const char *s, size_t n)
{
    size_t at = n;
    while (at > 0 && s[at - 1] != '<' && s[at - 1] != '>' && s[at - 1] != '\n')
        at--;
    return at > 0 && s[at - 1] == '<' ? at - 1 : n;
}

/* Finds the end of the turn by the text behind its words, in two renderings: up to the turn (n bytes of s->until), and
 * of the whole conversation. If the second contains all of that text, the turn ends after it. Otherwise the first
 * rendering has text that only ends a conversation. Then the turn ends where the two begin to differ, or before a tag
 * that is open there. */
static int end_behind_words(struct search *s, bool prompt, size_t n, size_t *end, bool *found, struct fsdpck_error *err)
{
    struct bounds alone, whole;
    int rc = find_bounds(s, &s->until, s->turn + 1, prompt, s->turn, &alone, err);
    if (!rc && alone.located)
        rc = find_bounds(s, s->full, json_array_size(s->messages), false, s->turn, &whole, err);
    if (rc || !alone.located || !whole.located)
        return rc;
    size_t from = s->until.nbytes - alone.behind, at = s->full->nbytes - whole.behind, left = from < n ? n - from : 0;
    size_t shared = common_prefix(s->until.text + from, left, s->full->text + at, whole.behind),
           closed = before_open_tag(s->full->text, at + shared);
    *end = shared == left ? at + left : closed > at ? without_line_ends(s->full->text, at, closed) : at;
    *found = shared == left || (*end > at && !prompt);
    return 0;
}

/* Finds the end of the turn from the rendering up to it (s->until). If the whole text begins with that rendering, the
 * turn ends there; otherwise compare the text behind the words. */
static int end_as_until(struct search *s, bool prompt, size_t *end, bool *found, struct fsdpck_error *err)
{
    size_t n = without_line_ends(s->until.text, 0, s->until.nbytes - (prompt ? prompt_nbytes(s) : 0));
    *end = n;
    *found = begins_with(s->full, &s->until, n);
    return *found ? 0 : end_behind_words(s, prompt, n, end, found, err);
}

static int find_end(struct search *s, size_t *end, bool *found, struct fsdpck_error *err)
{
    bool rendered;
    *end = without_line_ends(s->full->text, 0, s->full->nbytes);
    *found = s->turn + 1 == json_array_size(s->messages);
    int rc = *found ? 0 : render(s, s->turn + 1, false, &s->until, &rendered, err);
    if (!rc && !*found && rendered)
        rc = end_as_until(s, false, end, found, err);
    if (rc || *found || !s->turn)
        return rc;
    if (!s->has_history) /* a template may render the last turn differently, unless a prompt follows */
        rc = render(s, s->turn, false, &s->history, &s->has_history, err);
    if (!rc && prompt_nbytes(s))
        rc = render(s, s->turn + 1, true, &s->until, &rendered, err);
    return rc || !rendered || !ends_with_prompt(s, s->until.text, s->until.nbytes)
               ? rc
               : end_as_until(s, true, end, found, err);
}

static int unclear(size_t turn, struct fsdpck_error *err)
{
    fsdpck_error_set(err, FSDPCK_ERR_UNSUPPORTED, NULL,
                     "message %zu: the template renders this turn otherwise when others follow it, or the messages "
                     "before it otherwise when it follows, and which tokens are the assistant's cannot be told",
                     turn);
    fsdpck_error_hint(err, "use data.loss_on \"last_assistant\" or \"all\", or give the template {%% generation %%} … "
                           "{%% endgeneration %%} around what the assistant writes");
    return FSDPCK_ERR_UNSUPPORTED;
}

static int find_turn(struct search *s, struct jinja_span *span, struct fsdpck_error *err)
{
    bool found = false;
    int rc = find_begin(s, &span->begin, &found, err);
    if (!rc && found)
        rc = find_end(s, &span->end, &found, err);
    if (!rc && !found)
        return unclear(s->turn, err);
    if (!rc && span->end <= span->begin)
        return fsdpck_error_set(err, FSDPCK_ERR_FORMAT, NULL,
                                "message %zu: the chat template writes nothing for this turn of the assistant",
                                s->turn);
    return rc;
}

static int add_turn(const struct chat *c, json_t *messages, size_t i, json_t *tools, struct chat_turns *t,
                    struct fsdpck_error *err)
{
    struct search s = { .chat = c, .messages = messages, .tools = tools, .turn = i, .full = &t->full };
    struct jinja_span span = { 0 };
    int rc = find_turn(&s, &span, err);
    search_free(&s);
    if (rc)
        return rc;
    if (!grow((void **)&t->owned, &t->owned_capacity, t->nspans + 1, sizeof *t->owned))
        return fsdpck_error_nomem(err, sizeof span);
    t->owned[t->nspans++] = span;
    t->spans = t->owned;
    return 0;
}

/* Uses the template's own spans. last_only: those behind the beginning of the last turn; there may be several. */
static int take_generated(const struct chat *c, json_t *messages, size_t turn, json_t *tools, bool last_only,
                          struct chat_turns *t, struct fsdpck_error *err)
{
    struct search s = { .chat = c, .messages = messages, .tools = tools, .turn = turn, .full = &t->full };
    size_t begin = 0, skip = 0;
    bool found = true;
    int rc = last_only && turn ? find_begin(&s, &begin, &found, err) : 0;
    search_free(&s);
    if (rc || !found)
        return rc ? rc : unclear(turn, err);
    while (skip < t->full.nspans && t->full.spans[skip].end <= begin)
        skip++;
    t->spans = t->full.spans + skip;
    t->nspans = t->full.nspans - skip;
    return 0;
}

int chat_find_turns(const struct chat *c, json_t *messages, json_t *tools, bool last_only, struct chat_turns *out,
                    struct fsdpck_error *err)
{
    size_t n = json_array_size(messages), first = 0;
    out->nspans = 0;
    out->spans = NULL;
    int rc = chat_run(c, messages, tools, false, &out->full, err);
    if (rc)
        return rc;
    for (size_t i = 0; last_only && i < n; i++)
        first = chat_is_assistant(json_array_get(messages, i)) ? i : first;
    if (jinja_has_generation(c->jinja))
        return take_generated(c, messages, first, tools, last_only, out, err);
    for (size_t i = first; i < n && !rc; i++) {
        if (!chat_is_assistant(json_array_get(messages, i)))
            continue;
        rc = chat_check_calls(&out->full, json_array_get(messages, i), i, err);
        if (!rc)
            rc = add_turn(c, messages, i, tools, out, err);
    }
    return rc;
}
