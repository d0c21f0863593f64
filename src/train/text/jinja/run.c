/* SPDX-License-Identifier: Apache-2.0 */
/* Executes the statements of a template and writes its output. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/impl.h"

int jwrite(struct jrun *r, const char *s, size_t n)
{
    struct jinja_output *o = r->out;
    if (o->nbytes + n > JINJA_MAX_OUTPUT)
        return jinja_fail(r->j, r->line, FSDPCK_ERR_LIMIT, r->err, "it writes more than %d MiB",
                          JINJA_MAX_OUTPUT >> 20);
    if (!grow((void **)&o->text, &o->capacity, o->nbytes + n + 1, 1))
        return fsdpck_error_nomem(r->err, n);
    if (n)
        memcpy(o->text + o->nbytes, s, n);
    o->nbytes += n;
    o->text[o->nbytes] = '\0';
    return 0;
}

int jassign(struct jrun *r, const char *s, size_t n, const struct jvalue *v)
{
    for (struct jvariable *var = r->frame->variables; var; var = var->next) {
        if (var->n == n && memcmp(var->s, s, n) == 0) {
            var->value = *v;
            return 0;
        }
    }
    struct jvariable *var = jarena_alloc(&r->arena, sizeof *var);
    if (!var)
        return jno_memory(r);
    *var = (struct jvariable){ .s = s, .n = n, .value = *v, .next = r->frame->variables };
    r->frame->variables = var;
    return 0;
}

/* Assigns a value to one name, or its items to several. */
static int unpack(struct jrun *r, const struct jnode *names, const struct jvalue *v)
{
    struct jvalue items;
    size_t count = 0;
    if (!names->next)
        return jassign(r, names->s, names->n, v);
    int rc = jitems(r, v, &items);
    for (const struct jnode *n = names; n; n = n->next)
        count++;
    if (!rc && items.list->count != count)
        return jfail(r, "%zu name%s for %zu value%s", count, fsdpck_plural(count), items.list->count,
                     fsdpck_plural(items.list->count));
    for (size_t i = 0; !rc && i < count; i++, names = names->next)
        rc = jassign(r, names->s, names->n, &items.list->items[i]);
    return rc;
}

static int set(struct jrun *r, const struct jnode *n)
{
    struct jvalue v, target;
    int rc = jeval(r, n->a, &v);
    if (rc || !n->s)
        return rc ? rc : unpack(r, n->list, &v);
    rc = jeval(r, n->list, &target);
    if (!rc && target.kind != JV_NAMESPACE)
        return jfail(r, "'%.*s' is no namespace", (int)(n->list->n > 60 ? 60 : n->list->n), n->list->s);
    struct jvalue key = jstring(n->s, n->n);
    return rc ? rc : jdict_put(r, target.dict, &key, &v);
}

/* Runs a body and returns its output as a value. */
static int capture(struct jrun *r, const struct jnode *n, struct jvalue *out)
{
    size_t start = r->out->nbytes;
    r->captures++;
    int rc = jrun_body(r, n);
    r->captures--;
    if (!rc)
        rc = jstring_copy(r, r->out->text ? r->out->text + start : "", r->out->nbytes - start, out);
    r->out->nbytes = start;
    return rc;
}

static int in_frame(struct jrun *r, const struct jnode *n)
{
    struct jframe frame = { .parent = r->frame };
    r->frame = &frame;
    int rc = jrun_body(r, n);
    r->frame = frame.parent;
    return rc;
}

static int set_block(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;
    struct jframe frame = { .parent = r->frame };
    r->frame = &frame;
    int rc = capture(r, n->b, &v);
    r->frame = frame.parent;
    return rc ? rc : jassign(r, n->list->s, n->list->n, &v);
}

/* Keeps the items for which the loop's "if" holds. */
static int chosen(struct jrun *r, const struct jnode *n, struct jvalue *items)
{
    struct jvalue all = *items, holds;
    int rc = jlist_new(r, all.list->count, items);
    for (size_t i = 0; !rc && i < all.list->count; i++) {
        rc = unpack(r, n->list, &all.list->items[i]);
        if (!rc)
            rc = jeval(r, n->where, &holds);
        if (!rc && jtrue(&holds))
            rc = jlist_add(r, items->list, &all.list->items[i]);
    }
    return rc;
}

/* Runs one iteration in its own scope. */
static int turn(struct jrun *r, const struct jnode *n, struct jloop *loop)
{
    struct jframe frame = { .parent = r->frame };
    const struct jvalue value = { .kind = JV_LOOP, .loop = loop };
    r->frame = &frame;
    int rc = jassign(r, "loop", 4, &value);
    if (!rc)
        rc = unpack(r, n->list, &loop->items->items[loop->index]);
    if (!rc)
        rc = jrun_body(r, n->b);
    r->frame = frame.parent;
    return rc;
}

static int loop(struct jrun *r, const struct jnode *n)
{
    struct jvalue of, items;
    struct jframe frame = { .parent = r->frame };
    int rc = jeval(r, n->a, &of);
    r->line = n->line;
    if (!rc)
        rc = jitems(r, &of, &items);
    r->frame = &frame;
    if (!rc && n->where)
        rc = chosen(r, n, &items);
    r->frame = frame.parent;
    if (rc)
        return rc;
    struct jloop state = { .items = items.list };
    for (; state.index < items.list->count && rc != JRUN_BREAK && rc >= 0; state.index++)
        rc = turn(r, n, &state);
    if (rc < 0)
        return rc;
    return items.list->count == 0 && n->c ? in_frame(r, n->c) : 0;
}

/* Checks that each argument has a parameter, and no two the same one. Positional arguments come first. */
static int check_arguments(struct jrun *r, const struct jnode *macro, const struct jargs *args, size_t nparameters)
{
    const int shown = (int)(macro->n > 60 ? 60 : macro->n);
    const struct jnode *free = macro->list;
    size_t i = 0;
    for (; i < args->count && !args->names[i] && free; i++)
        free = free->next;
    for (; i < args->count && args->names[i]; i++) {
        const struct jnode *p = free;
        while (p && (args->name_nbytes[i] != p->n || memcmp(args->names[i], p->s, p->n) != 0))
            p = p->next;
        if (!p)
            return jfail(r, "macro '%.*s' takes no argument '%.*s', or has it already", shown, macro->s,
                         (int)(args->name_nbytes[i] > 60 ? 60 : args->name_nbytes[i]), args->names[i]);
    }
    return i < args->count
               ? jfail(r, "macro '%.*s' takes %zu arguments, %zu are given", shown, macro->s, nparameters, args->count)
               : 0;
}

int jcall_macro(struct jrun *r, const struct jnode *macro, const struct jnode *list, struct jvalue *out)
{
    struct jargs args;
    struct jvalue v;
    struct jframe frame = { 0 }, *caller = r->frame;
    size_t place = 0;
    int rc = jargs_eval(r, list, &args);
    for (frame.parent = caller; frame.parent->parent;
         frame.parent = frame.parent->parent) /* a macro sees global variables only */
        ;
    r->frame = &frame;
    for (const struct jnode *p = macro->list; p && !rc; p = p->next, place++) {
        const struct jvalue *given = NULL;
        for (size_t i = 0; i < args.count && !given; i++)
            given = (args.names[i] ? args.name_nbytes[i] == p->n && memcmp(args.names[i], p->s, p->n) == 0 : i == place)
                        ? &args.at[i]
                        : NULL;
        v = given ? *given : jundefined(p->s, p->n);
        if (!given && p->a)
            rc = jeval(r, p->a, &v);
        if (!rc)
            rc = jassign(r, p->s, p->n, &v);
    }
    if (!rc)
        rc = check_arguments(r, macro, &args, place);
    if (!rc)
        rc = capture(r, macro->b, out);
    r->frame = caller;
    return rc;
}

static int generation(struct jrun *r, const struct jnode *n)
{
    struct jinja_output *o = r->out;
    if (r->captures)
        return junsupported(r, "{%% generation %%} inside of a macro or a set block is not in this version");
    size_t begin = o->nbytes;
    int rc = in_frame(r, n->b);
    if (rc < 0)
        return rc;
    if (!grow((void **)&o->spans, &o->spans_capacity, o->nspans + 1, sizeof *o->spans))
        return fsdpck_error_nomem(r->err, sizeof *o->spans);
    o->spans[o->nspans++] = (struct jinja_span){ begin, o->nbytes };
    return rc;
}

static int output(struct jrun *r, const struct jnode *n)
{
    struct jvalue v, text;
    int rc = jeval(r, n->a, &v);
    if (!rc)
        rc = jtext(r, &v, &text);
    return rc ? rc : jwrite(r, text.s, text.n);
}

static int statement(struct jrun *r, const struct jnode *n)
{
    struct jvalue v;
    int rc;
    r->line = n->line;
    switch (n->kind) {
    case JN_DATA: return jwrite(r, n->s, n->n);
    case JN_OUTPUT: return output(r, n);
    case JN_IF:
        rc = jeval(r, n->a, &v);
        if (rc)
            return rc;
        return jtrue(&v) ? jrun_body(r, n->b) : n->c ? jrun_body(r, n->c) : 0;
    case JN_FOR: return loop(r, n);
    case JN_SET: return set(r, n);
    case JN_SET_BLOCK: return set_block(r, n);
    case JN_MACRO: v = (struct jvalue){ .kind = JV_MACRO, .macro = n }; return jassign(r, n->s, n->n, &v);
    case JN_GENERATION: return generation(r, n);
    case JN_BREAK: return JRUN_BREAK;
    case JN_CONTINUE: return JRUN_CONTINUE;
    default: return jfail(r, "this is no statement");
    }
}

int jrun_body(struct jrun *r, const struct jnode *n)
{
    int rc = 0;
    if (r->depth >= 4 * JINJA_MAX_DEPTH)
        return jinja_fail(r->j, n->line, FSDPCK_ERR_LIMIT, r->err,
                          "it is nested, or calls itself, more than %d levels deep", 4 * JINJA_MAX_DEPTH);
    r->depth++;
    for (; n && !rc; n = n->next) {
        if (++r->steps > JINJA_MAX_STEPS)
            rc = jinja_fail(r->j, n->line, FSDPCK_ERR_LIMIT, r->err, "it takes more than %d steps", JINJA_MAX_STEPS);
        else
            rc = statement(r, n);
    }
    r->depth--;
    return rc;
}

static int take_context(struct jrun *r, json_t *context)
{
    const char *key;
    json_t *member;
    struct jvalue v;
    int rc = 0;
    json_object_foreach (context, key, member) {
        if (!rc)
            rc = jvalue_of_json(r, member, 0, &v);
        if (!rc)
            rc = jassign(r, key, strlen(key), &v);
    }
    return rc;
}

int jinja_render(const struct jinja *j, struct json_t *context, time_t now, struct jinja_output *out,
                 struct fsdpck_error *err)
{
    struct fsdpck_error own = { 0 };
    struct jframe frame = { 0 };
    struct jrun r = { .j = j, .frame = &frame, .out = out, .now = now, .line = 1, .err = &own };
    out->nbytes = 0;
    out->nspans = 0;
    int rc = take_context(&r, context);
    if (!rc)
        rc = jwrite(&r, "", 0);
    if (!rc)
        rc = jrun_body(&r, j->body);
    jarena_free(&r.arena);
    if (rc < 0 && err && !err->code)
        *err = own;
    return rc < 0 ? rc : 0;
}

void jinja_output_free(struct jinja_output *o)
{
    free(o->text);
    free(o->spans);
    *o = (struct jinja_output){ 0 };
}
