/* SPDX-License-Identifier: Apache-2.0 */
/* Converts between the words of a key's choices and the enum values. The key table lists the words as "a|b". */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "config/config_keys.h"

/* The parser writes every enum of struct train_config as an unsigned. */
static_assert(sizeof(enum train_scheduler) == sizeof(unsigned), "enums without negative values are unsigned");

/* Takes the next word (nbytes long) from the list, and advances *list. Returns NULL at the end. */
static const char *next_word(const char **list, size_t *nbytes)
{
    const char *word = *list;
    if (!word || !*word)
        return NULL;
    *nbytes = strcspn(word, "|");
    *list = word + *nbytes + (word[*nbytes] == '|');
    return word;
}

int config_key_choice(const struct config_key *key, const char *word)
{
    const char *lists[] = { key->choices, key->synonyms }, *at;
    size_t nbytes;
    int choice = 0;
    for (int i = 0; i < 2; i++) {
        for (; (at = next_word(&lists[i], &nbytes)) != NULL; choice++) {
            if (nbytes == strlen(word) && memcmp(at, word, nbytes) == 0)
                return choice;
        }
    }
    return -1;
}

bool config_key_is_reserved(const struct config_key *key, const char *word)
{
    const char *list = key->reserved, *at;
    size_t nbytes;
    while ((at = next_word(&list, &nbytes)) != NULL) {
        if (nbytes == strlen(word) && memcmp(at, word, nbytes) == 0)
            return true;
    }
    return false;
}

const char *train_config_word(const char *name, unsigned choice, char word[TRAIN_WORD_NBYTES])
{
    const struct config_key *key = config_key_find(name);
    const char *lists[] = { key ? key->choices : NULL, key ? key->synonyms : NULL }, *at;
    size_t nbytes;
    *word = '\0';
    for (int i = 0; i < 2; i++) {
        while ((at = next_word(&lists[i], &nbytes)) != NULL) {
            if (choice-- == 0)
                snprintf(word, TRAIN_WORD_NBYTES, "%.*s", (int)nbytes, at);
        }
    }
    return word;
}

int train_config_choice(const char *name, const char *word)
{
    const struct config_key *key = config_key_find(name);
    return key ? config_key_choice(key, word) : -1;
}
