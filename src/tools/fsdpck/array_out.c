/* SPDX-License-Identifier: Apache-2.0 */
/* Prints brackets, separators and columns of arrays on stdout. It must not know the source of the elements. */
#include "array_out.h"

#include <stdio.h>
#include <string.h>

static size_t widest(size_t a, size_t b)
{
    return a > b ? a : b;
}

void array_out_measure(struct array_out *o, const void *data, uint64_t nelem)
{
    char text[NUMBER_NBYTES];
    size_t nbytes = fsdpck_dtype_info(o->dtype)->nbytes;
    for (uint64_t i = 0; i < nelem; i++) {
        const char *point = strchr(number_format(o->dtype, (const char *)data + i * nbytes, o->style, text), '.');
        if (point) {
            o->left = widest(o->left, (size_t)(point - text));
            o->right = widest(o->right, strlen(point));
        } else {
            o->plain = widest(o->plain, strlen(text));
        }
    }
    o->left = widest(o->left + o->right, o->plain) - o->right;
}

/* Aligns decimal points. Numbers without a point end where the others end. */
static void print_aligned(const struct array_out *o, const char *text)
{
    size_t n = strlen(text), width = o->left + o->right, before = strcspn(text, "."),
           left = before < n ? o->left : width;
    size_t pad = left > before ? left - before : 0;
    printf("%*s%s%*s", (int)pad, "", text, width > pad + n ? (int)(width - pad - n) : 0, "");
}

static void repeat(char c, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        putchar(c);
}

/* Prints the separator between two elements, where `wrapped` dimensions start again. */
static void separate(const struct array_out *o, uint32_t wrapped)
{
    if (o->style == NUMBER_JSON) {
        putchar(',');
    } else if (wrapped == 0) {
        putchar(' ');
    } else {
        repeat('\n', wrapped);
        repeat(' ', o->ndim - wrapped);
    }
}

static void print_element(struct array_out *o, const void *element)
{
    char text[NUMBER_NBYTES];
    uint32_t wrapped = 0;
    while (wrapped < o->ndim && o->at[o->ndim - 1 - wrapped] == 0)
        wrapped++;
    if (o->begun) {
        uint32_t d = o->ndim - 1 - wrapped; /* the dimension that advanced */
        repeat(']', wrapped);
        separate(o, wrapped);
        if (o->cut[d] && o->at[d] == ARRAY_EDGE) {
            fputs("...", stdout);
            separate(o, wrapped);
        }
    }
    repeat('[', wrapped);
    o->begun = true;
    print_aligned(o, number_format(o->dtype, element, o->style, text));
}

void array_out_print(struct array_out *o, const void *data, uint64_t nelem)
{
    size_t nbytes = fsdpck_dtype_info(o->dtype)->nbytes;
    for (uint64_t i = 0; i < nelem; i++) {
        print_element(o, (const char *)data + i * nbytes);
        for (uint32_t d = o->ndim; d-- > 0;) {
            if (++o->at[d] < o->shape[d])
                break;
            o->at[d] = 0;
        }
    }
}

void array_out_finish(struct array_out *o)
{
    if (o->begun)
        repeat(']', o->ndim);
    else
        fputs("[]", stdout);
}
