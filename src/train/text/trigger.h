/* SPDX-License-Identifier: Apache-2.0 */
/* image.trigger_word in a text. */
#ifndef TRAIN_TRIGGER_H
#define TRAIN_TRIGGER_H

#include <stdbool.h>

/* The text with every "[trigger]" replaced by the word. in_front: a text that has neither gets the word before it.
 * word: NULL: the text as it is. Owned; NULL: no memory. */
char *trigger_put(const char *text, const char *word, bool in_front);

#endif
