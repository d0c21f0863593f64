/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures on the card of an adapter: those that the run drew last, beside it as image_0.png, image_1.png, … */
#ifndef TRAIN_CARD_PICTURES_H
#define TRAIN_CARD_PICTURES_H

#include <stdio.h>

#include "rank/rank.h"

/* True for the name of such a file. */
bool card_picture_is(const char *name);
/* Copies the pictures of the last sampling up to this step into the folder, and adds the list of those with their
 * prompts to the front of the card, as Hugging Face shows it. A picture that is not there is left out. */
void card_pictures_put(FILE *f, const struct job *job, uint64_t step, const char *folder);

#endif
