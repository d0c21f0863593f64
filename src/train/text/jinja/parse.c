/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the statements of a template into a list of nodes. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja/impl.h"
#include "text/utf8.h"

static struct jnode *body(struct jparser *p, const char *const *ends, size_t nends, const char **end);

bool jname_is(const char *s, size_t n, const char *text)
{
    return strlen(text) == n && memcmp(s, text, n) == 0;
}

static bool block_end(struct jparser *p)
{
    return jparse_want(p, JT_BLOCK_END, NULL);
}

/* Parses statements up to one of the end tags ("a|b" lists several), and consumes the tag's name. An empty body becomes
 * a DATA node of 0 bytes. */
static struct jnode *body_to(struct jparser *p, const char *a, const char *b, const char *c, const char **end)
{
    const char *const ends[] = { a, b, c };
    return body(p, ends, b ? c ? 3 : 2 : 1, end);
}

static struct jnode *parse_if(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_IF);
    const char *end;
    if (!n || !(n->a = jparse_tuple(p)) || !block_end(p) || !(n->b = body_to(p, "elif", "else", "endif", &end)))
        return NULL;
    if (strcmp(end, "elif") == 0) {
        if (p->depth >= 4 * JINJA_MAX_DEPTH)
            return jparse_fail(p, "fewer elif");
        p->depth++;
        n->c = parse_if(p);
        p->depth--;
        return n->c ? n : NULL;
    }
    if (strcmp(end, "else") == 0 && (!block_end(p) || !(n->c = body_to(p, "endif", NULL, NULL, &end))))
        return NULL;
    return block_end(p) ? n : NULL;
}

/* Names with commas between them, optionally in parentheses. */
static bool targets(struct jparser *p, struct jnode *of)
{
    struct jnode **last = &of->list;
    bool parentheses = jparse_take(p, JT_OP, "(");
    do {
        struct jnode *n = jparse_node(p, JN_NAME);
        const struct jtoken *t = jparse_peek(p);
        if (!n || !jparse_want(p, JT_NAME, NULL))
            return false;
        n->s = t->s;
        n->n = t->n;
        *last = n;
        last = &n->next;
    } while (jparse_take(p, JT_OP, ","));
    return !parentheses || jparse_want(p, JT_OP, ")");
}

static struct jnode *parse_for(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_FOR);
    const char *end;
    if (!n || !targets(p, n) || !jparse_want(p, JT_NAME, "in") || !(n->a = jparse_expression_no_cond(p)))
        return NULL;
    if (jparse_take(p, JT_NAME, "if") && !(n->where = jparse_expression(p)))
        return NULL;
    if (jparse_is(p, JT_NAME, "recursive"))
        return jparse_fail(p, "a loop that is not recursive (they are not in this version) is");
    p->loops++;
    if (!block_end(p) || !(n->b = body_to(p, "else", "endfor", NULL, &end)))
        return NULL;
    p->loops--;
    if (strcmp(end, "else") == 0 && (!block_end(p) || !(n->c = body_to(p, "endfor", NULL, NULL, &end))))
        return NULL;
    return block_end(p) ? n : NULL;
}

/* set a = …, set a.b = …, set a, b = …, set a %}…{% endset. */
static struct jnode *parse_set(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_SET);
    const char *end;
    if (!n || !targets(p, n))
        return NULL;
    if (jparse_take(p, JT_OP, ".")) {
        const struct jtoken *t = jparse_peek(p);
        n->s = t->s;
        n->n = t->n;
        if (n->list->next || !jparse_want(p, JT_NAME, NULL))
            return jparse_fail(p, "=");
    }
    if (jparse_take(p, JT_OP, "="))
        return (n->a = jparse_tuple(p)) && block_end(p) ? n : NULL;
    n->kind = JN_SET_BLOCK;
    if (n->s || n->list->next)
        return jparse_fail(p, "=");
    if (jparse_is(p, JT_OP, "|"))
        return jparse_fail(p, "a block without filters (they are not in this version) is");
    return block_end(p) && (n->b = body_to(p, "endset", NULL, NULL, &end)) && block_end(p) ? n : NULL;
}

static struct jnode *parse_macro(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_MACRO), **last = n ? &n->list : NULL;
    const struct jtoken *t = jparse_peek(p);
    const char *end;
    if (!n || !jparse_want(p, JT_NAME, NULL) || !jparse_want(p, JT_OP, "("))
        return NULL;
    if (p->loops || p->macro) { /* the macro would see the variables around it */
        jinja_fail(p->j, t->line, FSDPCK_ERR_UNSUPPORTED, p->err,
                   "a macro inside of a loop or macro is not in this version: define '%.*s' outside",
                   (int)(t->n > 60 ? 60 : t->n), t->s);
        return NULL;
    }
    n->s = t->s;
    n->n = t->n;
    while (!jparse_take(p, JT_OP, ")")) {
        if (last != &n->list && !jparse_want(p, JT_OP, ","))
            return NULL;
        struct jnode *parameter = jparse_node(p, JN_NAME);
        t = jparse_peek(p);
        if (!parameter || !jparse_want(p, JT_NAME, NULL))
            return NULL;
        parameter->s = t->s;
        parameter->n = t->n;
        if (jparse_take(p, JT_OP, "=") && !(parameter->a = jparse_expression(p)))
            return NULL;
        *last = parameter;
        last = &parameter->next;
    }
    p->macro = n;
    if (!block_end(p) || !(n->b = body_to(p, "endmacro", NULL, NULL, &end)) || !block_end(p))
        return NULL;
    p->macro = NULL;
    return n;
}

static struct jnode *parse_generation(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_GENERATION);
    const char *end;
    p->j->generation = true;
    return n && block_end(p) && (n->b = body_to(p, "endgeneration", NULL, NULL, &end)) && block_end(p) ? n : NULL;
}

static struct jnode *parse_jump(struct jparser *p, enum jnode_kind kind)
{
    struct jnode *n = jparse_node(p, kind);
    if (p->loops == 0)
        return jparse_fail(p, "a loop around it is");
    return n && block_end(p) ? n : NULL;
}

/* Behind "{%". */
static struct jnode *statement(struct jparser *p)
{
    if (jparse_take(p, JT_NAME, "if"))
        return parse_if(p);
    if (jparse_take(p, JT_NAME, "for"))
        return parse_for(p);
    if (jparse_take(p, JT_NAME, "set"))
        return parse_set(p);
    if (jparse_take(p, JT_NAME, "macro"))
        return parse_macro(p);
    if (jparse_take(p, JT_NAME, "generation"))
        return parse_generation(p);
    if (jparse_take(p, JT_NAME, "break"))
        return parse_jump(p, JN_BREAK);
    if (jparse_take(p, JT_NAME, "continue"))
        return parse_jump(p, JN_CONTINUE);
    return jparse_fail(p, "one of if, for, set, macro, generation, break, continue is");
}

static struct jnode *output(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_OUTPUT);
    return n && (n->a = jparse_tuple(p)) && jparse_want(p, JT_VAR_END, NULL) ? n : NULL;
}

static struct jnode *data(struct jparser *p)
{
    struct jnode *n = jparse_node(p, JN_DATA);
    const struct jtoken *t = jparse_peek(p);
    if (n && t->kind == JT_DATA) {
        n->s = t->s;
        n->n = t->n;
        p->at++;
    }
    return n;
}

static struct jnode *body(struct jparser *p, const char *const *ends, size_t nends, const char **end)
{
    struct jnode *first = NULL, **last = &first;
    if (p->depth >= JINJA_MAX_DEPTH)
        return jparse_fail(p, "less nesting");
    p->depth++;
    for (*end = NULL; !*end;) {
        struct jnode *n = NULL;
        if (jparse_is(p, JT_DATA, NULL)) {
            n = data(p);
        } else if (jparse_take(p, JT_VAR_BEGIN, NULL)) {
            n = output(p);
        } else if (jparse_take(p, JT_BLOCK_BEGIN, NULL)) {
            for (size_t i = 0; i < nends && !*end; i++)
                *end = jparse_take(p, JT_NAME, ends[i]) ? ends[i] : NULL;
            if (*end)
                break;
            n = statement(p);
        } else if (nends == 0 && jparse_is(p, JT_END, NULL)) {
            break;
        } else {
            return jparse_fail(p, nends ? ends[nends - 1] : "the end");
        }
        if (!n)
            return NULL;
        *last = n;
        last = &n->next;
    }
    p->depth--;
    return first ? first : data(p);
}

/* Jinja converts all line ends to "\n" and drops the one at the end of a template. */
static void take_source(struct jinja *j, const char *source, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        if (source[i] == '\r' && i + 1 < nbytes && source[i + 1] == '\n')
            continue;
        j->source[j->nbytes++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (j->nbytes && j->source[j->nbytes - 1] == '\n')
        j->nbytes--;
}

int jinja_parse(const char *name, const char *source, size_t nbytes, struct jinja **out, struct fsdpck_error *err)
{
    const char *end;
    struct fsdpck_error own = { 0 };
    *out = NULL;
    if (nbytes > JINJA_MAX_SOURCE)
        return fsdpck_error_set(err, FSDPCK_ERR_LIMIT, name, "a template of %zu bytes; at most %d are read", nbytes,
                                JINJA_MAX_SOURCE);
    size_t valid = utf8_valid_prefix(source, nbytes);
    if (valid < nbytes)
        return fsdpck_error_at(err, FSDPCK_ERR_FORMAT, name, valid, "this byte of the template, 0x%02x, is no UTF-8",
                               (unsigned char)source[valid]);
    struct jinja *j = calloc(1, sizeof *j);
    if (!j || !(j->source = malloc(nbytes + 8)) || !(j->name = strdup(name))) {
        jinja_free(j);
        return fsdpck_error_nomem(err, nbytes);
    }
    take_source(j, source, nbytes);
    memset(j->source + j->nbytes, 0, 8);
    int rc = jinja_lex(j, &own);
    struct jparser p = { .j = j, .err = &own };
    if (!rc && !(j->body = body(&p, NULL, 0, &end)))
        rc = own.code ? own.code : fsdpck_error_nomem(&own, nbytes);
    j->clock = memmem(j->source, j->nbytes, "strftime_now", 12) != NULL;
    if (rc) {
        jinja_free(j);
        if (err && !err->code)
            *err = own;
        return rc;
    }
    *out = j;
    return 0;
}

void jinja_free(struct jinja *j)
{
    if (!j)
        return;
    jarena_free(&j->arena);
    free(j->tokens);
    free(j->source);
    free(j->name);
    free(j);
}

bool jinja_has_generation(const struct jinja *j)
{
    return j->generation;
}

bool jinja_has_clock(const struct jinja *j)
{
    return j->clock;
}
