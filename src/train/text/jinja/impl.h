/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of the template engine: tokens, nodes, values, and the state of a rendering. */
#ifndef TRAIN_TEXT_JINJA_IMPL_H
#define TRAIN_TEXT_JINJA_IMPL_H

#include "text/jinja/jinja.h"
#include "text/maps.h"

enum {
    JINJA_MAX_SOURCE = 1 << 20,
    JINJA_MAX_DEPTH = 100,         /* depth of nested expressions, blocks and values */
    JINJA_MAX_STEPS = 4 * 1000000, /* nodes executed per rendering: 10,000 messages of 400 */
    JINJA_MAX_OUTPUT = 64 << 20,
    JINJA_MAX_MEMORY = 256 << 20, /* bytes allocated per rendering */
};

/* An allocator that frees all its memory at once. */
struct jarena {
    struct jarena_block *last;
    size_t total;
};
void *jarena_alloc(struct jarena *a, size_t nbytes); /* NULL: out of memory, or JINJA_MAX_MEMORY reached */
void jarena_free(struct jarena *a);

/* --- tokens --- */

enum jtoken_kind {
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP,
    JT_END
};
struct jtoken {
    enum jtoken_kind kind;
    uint32_t line;
    const char *s; /* (n) data, name, operator; a string with its escapes decoded */
    size_t n;
    int64_t i;
    double f;
};

/* --- nodes --- */

enum jnode_kind {
    /* statements; `next` is the next one */
    JN_DATA,
    JN_OUTPUT,
    JN_IF,
    JN_FOR,
    JN_SET,
    JN_SET_BLOCK,
    JN_MACRO,
    JN_GENERATION,
    JN_BREAK,
    JN_CONTINUE,
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST,
    JN_DICT,
    JN_ATTR,
    JN_ITEM,
    JN_SLICE,
    JN_CALL,
    JN_FILTER,
    JN_TEST,
    JN_NOT,
    JN_NEG,
    JN_AND,
    JN_OR,
    JN_BINARY,
    JN_COMPARE,
    JN_COND,
};
enum jop {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOORDIV,
    JO_MOD,
    JO_CONCAT,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN
};

struct jvalue;
struct jnode {
    enum jnode_kind kind;
    enum jop op;
    uint32_t line;
    const char *s; /* (n) name, data, keyword of an argument */
    size_t n;
    const struct jvalue *value; /* CONST */
    int function;               /* FILTER, TEST: index in its table */
    struct jnode *a, *b,
        *c;              /* operands; IF: condition, body, else; FOR: iterable, body, else; SLICE: start, stop, step */
    struct jnode *list;  /* arguments, items, loop targets or parameters, linked by `next` */
    struct jnode *where; /* FOR: its condition; SLICE: its operand */
    struct jnode *next;
};

struct jinja {
    char *name, *source;
    size_t nbytes;
    struct jarena arena;
    struct jtoken *tokens;
    size_t ntokens, tokens_capacity;
    struct jnode *body;
    bool generation, clock;
};

/* State of a parser. */
struct jparser {
    struct jinja *j;
    size_t at;
    unsigned depth, loops;
    const struct jnode *macro; /* the macro whose body is being parsed; NULL: none */
    struct fsdpck_error *err;
};
int jinja_lex(struct jinja *j, struct fsdpck_error *err);
struct jnode *jparse_binary(struct jparser *p, enum jnode_kind kind, enum jop op, struct jnode *a,
                            struct jnode *b);                /* NULL if a or b is NULL */
struct jnode *jparse_unary(struct jparser *p, bool filters); /* an operand */
struct jnode *jparse_expression(struct jparser *p);          /* NULL: err is set */
struct jnode *jparse_expression_no_cond(struct jparser *p);  /* no conditional expression (x if y else z) */
struct jnode *jparse_filters(struct jparser *p, struct jnode *node);
struct jnode *jparse_tuple(struct jparser *p); /* a, b or one expression */
struct jnode *jparse_node(struct jparser *p, enum jnode_kind kind);
const struct jtoken *jparse_peek(const struct jparser *p);
bool jparse_is(const struct jparser *p, enum jtoken_kind kind, const char *text); /* text NULL: any text */
bool jparse_take(struct jparser *p, enum jtoken_kind kind, const char *text);
bool jparse_want(struct jparser *p, enum jtoken_kind kind,
                 const char *text);                     /* as jparse_take(), but a mismatch is an error */
void *jparse_fail(struct jparser *p, const char *what); /* returns NULL */
int jinja_fail(const struct jinja *j, uint32_t line, int code, struct fsdpck_error *err, const char *fmt, ...)
    FSDPCK_PRINTF(5, 6);

/* --- values --- */

enum jvalue_kind {
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STRING,
    JV_LIST,
    JV_DICT,
    JV_NAMESPACE,
    JV_LOOP,
    JV_MACRO,
    JV_FUNCTION,
    /* range(), dict.items(), and the result of filters such as map (single pass). Loops and filters accept them as
     * lists; nothing else does. */
    JV_RANGE,
    JV_VIEW,
    JV_ITERATOR,
};
struct jvalue {
    enum jvalue_kind kind;
    bool tuple; /* LIST: display as a tuple */
    union {
        int64_t i; /* INT, BOOL */
        double f;
        struct {
            const char *s; /* STRING; UNDEFINED and FUNCTION: the name */
            size_t n;
        };
        struct jlist *list; /* LIST, RANGE, VIEW, ITERATOR */
        struct jdict *dict; /* DICT, NAMESPACE */
        struct jloop *loop;
        const struct jnode *macro;
    };
};
struct jlist {
    struct jvalue *items; /* (count) */
    size_t count, capacity;
    bool spent;  /* ITERATOR: already consumed */
    bool values; /* VIEW: a dictionary's values; such a view equals itself only */
};
struct jdict {
    struct jpair {
        struct jvalue key, value;
    } * pairs; /* (count) */
    size_t count, capacity;
};
struct jloop {
    const struct jlist *items;
    size_t index;
};
struct jvariable {
    const char *s;
    size_t n;
    struct jvalue value;
    struct jvariable *next;
};
struct jframe {
    struct jvariable *variables;
    struct jframe *parent;
};

struct jrun {
    const struct jinja *j;
    struct jarena arena;
    struct jframe *frame;
    struct jinja_output *out;
    uint64_t steps;
    unsigned depth, captures;
    uint32_t line;
    time_t now;
    struct fsdpck_error *err;
};

/* These functions return 0, or the code of the error that they set. They write *out on success only. */
int jfail(struct jrun *r, const char *fmt, ...) FSDPCK_PRINTF(2, 3);
int junsupported(struct jrun *r, const char *fmt, ...)
    FSDPCK_PRINTF(2, 3);        /* for features of Jinja that this version lacks */
int jno_memory(struct jrun *r); /* the arena reached its limit, or the system is out of memory */
int jeval(struct jrun *r, const struct jnode *n, struct jvalue *out);
int jrun_body(struct jrun *r, const struct jnode *n); /* 0, an error, or one of the following */
enum { JRUN_BREAK = 1, JRUN_CONTINUE = 2 };
int jcall_macro(struct jrun *r, const struct jnode *macro, const struct jnode *args, struct jvalue *out);
int jassign(struct jrun *r, const char *s, size_t n, const struct jvalue *v);
int jwrite(struct jrun *r, const char *s, size_t n);

struct jvalue jstring(const char *s, size_t n);
struct jvalue jint(int64_t i);
struct jvalue jbool(bool b);
struct jvalue jnone(void);
struct jvalue jundefined(const char *s, size_t n);
int jstring_copy(struct jrun *r, const char *s, size_t n, struct jvalue *out);
int jlist_new(struct jrun *r, size_t capacity, struct jvalue *out);
int jlist_add(struct jrun *r, struct jlist *l, const struct jvalue *v);
int jdict_new(struct jrun *r, struct jvalue *out);
int jdict_put(struct jrun *r, struct jdict *d, const struct jvalue *key, const struct jvalue *v);
const struct jvalue *jdict_get(const struct jdict *d, const char *s, size_t n);   /* NULL: no such key */
const struct jvalue *jdict_find(const struct jdict *d, const struct jvalue *key); /* NULL: no such key */
int jvalue_of_json(struct jrun *r, struct json_t *json, unsigned depth, struct jvalue *out);
bool jtrue(const struct jvalue *v);
bool jequal(const struct jvalue *a, const struct jvalue *b, unsigned depth);
const char *jkind_name(const struct jvalue *v);
bool jis(const struct jvalue *v, const char *text); /* true if v is a string with these bytes */
size_t jnchars(const struct jvalue *string);
/* The items of an iterable: a list or its like, the keys of a dict, the characters of a string. Consumes an
 * iterator. */
int jitems(struct jrun *r, const struct jvalue *v, struct jvalue *out);
/* str(v), repr(v), json.dumps(v). */
int jtext(struct jrun *r, const struct jvalue *v, struct jvalue *out);
struct jdump {
    bool ascii, sort;
    int indent;             /* -1: on one line */
    const char *item, *key; /* separators */
};
int jjson(struct jrun *r, const struct jvalue *v, const struct jdump *how, struct jvalue *out);

/* The evaluated arguments of a call. */
enum { JARGS_MAX = 16 };
struct jargs {
    struct jvalue at[JARGS_MAX];
    const char *names[JARGS_MAX]; /* NULL: a positional argument */
    size_t name_nbytes[JARGS_MAX];
    size_t count;
};
int jargs_eval(struct jrun *r, const struct jnode *list, struct jargs *out);
/* The argument at position `place` or with keyword `name`. NULL: not given. */
const struct jvalue *jarg(const struct jargs *args, size_t place, const char *name);

int jattr(struct jrun *r, const struct jvalue *v, const char *s, size_t n, struct jvalue *out);
int jitem(struct jrun *r, const struct jvalue *v, const struct jvalue *key, struct jvalue *out);
int jundefined_error(struct jrun *r, const struct jvalue *v);
int jattribute(struct jrun *r, const struct jvalue *item, const struct jvalue *name,
               struct jvalue *out); /* takes the attribute as filters name it */
int jbinary(struct jrun *r, enum jop op, const struct jvalue *a, const struct jvalue *b, struct jvalue *out);
int jcompare(struct jrun *r, enum jop op, const struct jvalue *a, const struct jvalue *b, bool *out);
int jmethod(struct jrun *r, const struct jvalue *self, const char *s, size_t n, const struct jargs *args,
            struct jvalue *out);
bool jfunction_exists(const char *s, size_t n);
int jfunction(struct jrun *r, const char *s, size_t n, const struct jargs *args, struct jvalue *out);
int jfilter_find(const char *s, size_t n); /* -1: no such filter */
int jfilter(struct jrun *r, int filter, const struct jvalue *v, const struct jargs *args, struct jvalue *out);
int jtest_find(const char *s, size_t n);
int jtest(struct jrun *r, int test, const struct jvalue *v, const struct jargs *args, bool *out);
bool jname_is(const char *s, size_t n, const char *text);
/* Python's str.strip(): removes white space, or the characters in `chars`. */
struct jvalue jstrip(const struct jvalue *v, const struct jvalue *chars, bool left, bool right);
int jreplace(struct jrun *r, const struct jvalue *v, const struct jvalue *from, const struct jvalue *to,
             struct jvalue *out);
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE, JCASE_CAPITALIZE };
int jrecase(struct jrun *r, const struct jvalue *v, enum jcase how, struct jvalue *out);

#endif
