/* One table entry a key of CONFIG.json, and the walk that fills a struct train_config from a tree of JSON by that table. */
#ifndef TRAIN_CONFIG_KEYS_H
#define TRAIN_CONFIG_KEYS_H

#include <train/config.h>

enum config_key_type {
    KEY_STRING,   /* const char * */
    KEY_CHOICE,   /* const char *: one of `choices`, or of `also` */
    KEY_BOOL,     /* bool */
    KEY_U64,      /* uint64_t in min … max */
    KEY_NUMBER,   /* double in min … max */
    KEY_TARGETS,  /* a string or a list of strings: lora.target_… */
    KEY_NAMES,    /* a list of strings: lora.modules_to_save */
    KEY_PATTERNS, /* object of numbers: struct train_pattern * and its count */
    KEY_FILES,    /* a path, or a list of paths and of {"path", "weight"}: data.train, data.eval (const char *: the first) */
    KEY_COLUMNS,  /* json_t *: an object of strings; its keys are those that an example may have */
    KEY_PROMPTS   /* json_t *: a list of texts, lists of messages and objects */
};

struct config_key {
    const char *name; /* "section.key" */
    enum config_key_type type;
    size_t offset; /* in struct train_config */
    bool nullable; /* null is allowed and means 0 or NULL */
    bool whole;    /* KEY_PATTERNS: integers only */
    double min, max;
    const char *choices, *also; /* "a|b" */
    const char *later;          /* values that a later version will know */
    /* Why the key has no effect in this run, or NULL: it has one. No function: it has one in every run. */
    const char *(*idle)(const struct train_config *c, const struct train_place *place);
};

int config_keys_apply(const char *path, const struct config_key *keys, size_t nkeys, struct train_config *c, struct fsdpck_error *err);

#endif
