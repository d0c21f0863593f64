/* SPDX-License-Identifier: Apache-2.0 */
/* Reads prompts from the command line or a pipe. A newline at the end of the pipe does not belong to the prompt. */
#include "sample_prompts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 << 20 };

static int read_stdin(char **text, size_t *nbytes, struct fsdpck_error *err)
{
    size_t room = 1 << 16;
    char *buffer = malloc(room);
    *nbytes = 0;
    for (ssize_t n = 1; buffer && n > 0;) {
        if (*nbytes == room) {
            char *moved = realloc(buffer, room *= 2);
            if (!moved)
                free(buffer);
            buffer = moved;
        }
        n = buffer ? read(STDIN_FILENO, buffer + *nbytes, room - *nbytes) : 0;
        if (n < 0 || *nbytes > MOST) {
            free(buffer);
            return n < 0 ? fsdpck_error_sys(err, errno, "standard input", "read")
                         : fsdpck_error_set(err, FSDPCK_ERR_LIMIT, "standard input", "a prompt of more than %d bytes",
                                            MOST);
        }
        *nbytes += (size_t)n;
    }
    *text = buffer;
    if (!buffer)
        return fsdpck_error_nomem(err, room);
    if (*nbytes && buffer[*nbytes - 1] == '\n')
        --*nbytes;
    return 0;
}

/* Parses the text as a conversation; returns NULL if it is plain text. */
static json_t *conversation(const char *text, size_t nbytes)
{
    json_t *value = json_loadb(text, nbytes, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(json_array_get(value, 0)) || json_is_array(json_object_get(value, "messages")))
        return value;
    json_decref(value);
    return NULL;
}

static json_t *with_system(json_t *prompt, const char *system)
{
    json_t *messages = json_is_object(prompt) ? json_object_get(prompt, "messages") : prompt;
    json_t *list =
        json_is_string(prompt) ? json_pack("[{s:s, s:O}]", "role", "user", "content", prompt) : json_copy(messages);
    json_array_insert_new(list, 0, json_pack("{s:s, s:s}", "role", "system", "content", system));
    json_decref(prompt);
    return list;
}

static int add(json_t *list, const char *text, size_t nbytes, bool chat, const char *system, struct fsdpck_error *err)
{
    json_t *prompt = chat ? conversation(text, nbytes) : NULL;
    if (!prompt)
        prompt = json_stringn(text, nbytes);
    if (prompt && chat && system)
        prompt = with_system(prompt, system);
    if (json_array_append_new(list, prompt) == 0)
        return 0;
    return fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL, "prompt %zu is no UTF-8", json_array_size(list) + 1);
}

int sample_prompts_read(const struct strings *typed, bool chat, const char *system, json_t **out,
                        struct fsdpck_error *err)
{
    json_t *list = json_array();
    char *text = NULL;
    size_t nbytes = 0;
    int rc = list ? 0 : fsdpck_error_nomem(err, 64);
    for (size_t i = 0; i < typed->count && !rc; i++)
        rc = add(list, typed->at[i], strlen(typed->at[i]), chat, system, err);
    if (!rc && typed->count == 0 && isatty(STDIN_FILENO))
        rc = fsdpck_error_set(err, FSDPCK_ERR_USAGE, NULL,
                              "there is no prompt: --prompt TEXT, or a text on standard input");
    else if (!rc && typed->count == 0)
        rc = read_stdin(&text, &nbytes, err);
    if (!rc && text)
        rc = add(list, text, nbytes, chat, system, err);
    free(text);
    if (rc)
        json_decref(list);
    *out = rc ? NULL : list;
    return rc;
}
