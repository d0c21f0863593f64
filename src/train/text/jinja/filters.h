/* SPDX-License-Identifier: Apache-2.0 */
/* The filters of templates, by the file that implements them. */
#ifndef TRAIN_TEXT_JINJA_FILTERS_H
#define TRAIN_TEXT_JINJA_FILTERS_H

#include "text/jinja/impl.h"

/* v: the value before the "|". */
typedef int jfilter_fn(struct jrun *r, const struct jvalue *v, const struct jargs *args, struct jvalue *out);

/* filter_text.c */
jfilter_fn jfilter_string, jfilter_trim, jfilter_upper, jfilter_lower, jfilter_title, jfilter_capitalize,
    jfilter_tojson, jfilter_replace, jfilter_indent;
/* filter_number.c */
jfilter_fn jfilter_int, jfilter_float, jfilter_abs;
/* filter_items.c */
jfilter_fn jfilter_length, jfilter_join, jfilter_first, jfilter_last, jfilter_list, jfilter_items, jfilter_dictsort,
    jfilter_reverse, jfilter_unique;
/* each.c */
jfilter_fn jfilter_map, jfilter_select, jfilter_reject, jfilter_selectattr, jfilter_rejectattr;

#endif
