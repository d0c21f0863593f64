/* SPDX-License-Identifier: Apache-2.0 */
/* The key table of CONFIG.json, with one entry per key, and the walk that fills a struct train_config from a JSON
 * tree. */
#ifndef TRAIN_CONFIG_KEYS_H
#define TRAIN_CONFIG_KEYS_H

#include <jansson.h>
#include <train/config.h>

enum config_key_type {
    KEY_STRING,   /* const char * */
    KEY_CHOICE,   /* an enum: the index of the word in `choices`, then on in `also` */
    KEY_CHOICES,  /* unsigned: a bit for each word of `choices` that a list names; one word is a list too */
    KEY_BOOL,     /* bool */
    KEY_U64,      /* uint64_t in min … max */
    KEY_U64S,     /* struct train_u64_list: a whole number in min … max, or a list of them */
    KEY_SWITCH,   /* uint64_t: 0 for false, 1 for true, or a number in min … max */
    KEY_NUMBER,   /* double in min … max */
    KEY_TARGETS,  /* a string or a list of strings: lora.target_… */
    KEY_NAMES,    /* a list of strings: lora.modules_to_save */
    KEY_PATTERNS, /* object of numbers: struct train_pattern * and its count */
    KEY_FILES,    /* a path, or a list of paths and {"path", "weight"}; const char *: the first */
    KEY_COLUMNS,  /* json_t *: an object of strings, whose keys are column names */
    KEY_PROMPTS,  /* json_t *: a list of strings, lists of messages, and objects */
    KEY_POLICY,   /* a list of objects: struct train_policy * and its count */
    KEY_TENANTS   /* json_t *: a list of objects, or the path of a folder of such files */
};

/* The default of a key. text: KEY_STRING, KEY_CHOICE, KEY_TARGETS; number: KEY_U64, KEY_U64S, KEY_NUMBER; yes:
 * KEY_BOOL, KEY_SWITCH. Other types are empty by default. */
union config_default {
    const char *text;
    double number;
    bool yes;
};

struct config_key {
    const char *name; /* "section.key" */
    enum config_key_type type;
    size_t offset;   /* in struct train_config */
    const char *doc; /* for users: what the key does, in sentences */
    union config_default default_value;
    bool required;                  /* the config must contain it */
    bool optional;                  /* no default, but optional */
    bool nullable;                  /* null is allowed and means 0 or NULL */
    bool integer;                   /* KEY_PATTERNS: integers only */
    enum train_automatic automatic; /* 0: the key cannot be "auto" */
    int policy; /* enum train_policy_key + 1: objects of fsdp.policy may have the key too; 0: they may not */
    const char *policy_name; /* its name there; NULL: that behind the dot */
    double min, max;
    const char *choices, *synonyms; /* "a|b" */
    const char *reserved;           /* values reserved for a later version */
    /* Returns the reason why the key has no effect in this run, or NULL. No function: the key always has an effect. */
    const char *(*idle)(const struct train_config *c, const struct train_job_size *size);
};

struct config_section {
    const char *name, *doc; /* name: "" for the top level */
};

extern const struct config_key config_keys[]; /* (config_nkeys) grouped by section */
extern const size_t config_nkeys;
extern const struct config_section config_sections[]; /* (config_nsections) in the order of config_keys */
extern const size_t config_nsections;

/* The columns that an example of data may have: the keys of KEY_COLUMNS. */
extern const char *const config_columns[]; /* (config_ncolumns) */
extern const size_t config_ncolumns;

/* The key of this name, or NULL. */
const struct config_key *config_key_find(const char *name);
/* The enum value of a word; -1: the key has no such word. */
int config_key_choice(const struct config_key *key, const char *word);
/* True if the value leaves the key to the run. */
bool config_key_is_auto(const struct config_key *key, const json_t *value);
/* True if the word is reserved for a later version of the program. */
bool config_key_is_reserved(const struct config_key *key, const char *word);

enum { CONFIG_NUMBER = 32 };

/* The shortest decimal that round-trips: 16777216, 0.1, 1e+30. */
const char *config_show_number(double value, char text[CONFIG_NUMBER]);

/* Sets every key of the table to its default. */
void config_keys_defaults(struct train_config *c);
/* Fills c from the tree in c->root. path: the file name for errors. */
int config_keys_apply(const char *path, struct train_config *c, struct fsdpck_error *err);
/* Fills the member of c that belongs to the key. Names of modules that it allocates belong to c, also after a
 * failure. */
int config_key_put(const char *path, const struct config_key *key, json_t *value, struct train_config *c,
                   struct fsdpck_error *err);
/* Fails if a required key has no value. */
int config_keys_required(const char *path, const struct train_config *c, struct fsdpck_error *err);

#endif
