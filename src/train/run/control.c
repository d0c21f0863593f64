/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the control file, and removes it before it handles the request, so that no request is executed twice. Anyone
 * who may write to output_dir may write it: it is short, plain and untrusted. */
#include "run/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rank/files.h"

enum { WORD = 32 };

static void note(const struct control *c, const char *line)
{
    if (c->job->opt->note)
        c->job->opt->note(c->job->opt->ctx, line);
}

/* Returns false if there is no file, or nothing in it yet. */
static bool read_word(const char *path, char word[WORD])
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, word, WORD - 1) : 0;
    close(fd);
    word[n > 0 ? n : 0] = '\0';
    word[strcspn(word, " \t\r\n")] = '\0';
    return n > 0;
}

/* Reads a request and removes the file. Returns false if there is none, or if the file cannot be removed. */
static bool take_word(struct control *c, char word[WORD])
{
    char path[FILES_PATH], line[FILES_PATH + 200];
    if (c->ignore_file || files_join(path, c->job->config->output_dir, "control", NULL) || !read_word(path, word))
        return false;
    if (unlink(path) == 0)
        return true;
    c->ignore_file = true;
    snprintf(line, sizeof line, "%s cannot be removed (%s): it is not obeyed", path, strerror(errno));
    note(c, line);
    return false;
}

void control_open(struct control *c, const struct rank *r)
{
    char word[WORD], line[200];
    *c = (struct control){ .job = r->job, .job_status = r->comm->job_status, .ignore_file = r->comm->rank != 0 };
    if (!take_word(c, word))
        return;
    snprintf(line, sizeof line, "control: '%s' was asked for before this run began, and is not done", word);
    note(c, line);
}

static void handle_request(const struct control *c, const char *word, struct requests *requests)
{
    char line[200];
    if (strcmp(word, "save") == 0) {
        requests->save = true;
    } else if (strcmp(word, "stop") == 0) {
        note(c, "control: stop: this step is finished and saved");
        requests->stop = true;
    } else if (strcmp(word, "sample") == 0 && (c->job->samples || c->job->ntenants)) {
        note(c, "control: sample: after this step");
        requests->sample = true;
    } else if (strcmp(word, "sample") == 0) {
        note(c, "control: sample: the config has no sample.prompts");
    } else if (strcmp(word, "pause") == 0 && c->job->name) {
        note(c, "control: pause: after this step, which is saved");
        requests->pause = true;
    } else if (strcmp(word, "resume") == 0 && c->job->name) {
        note(c, "control: resume");
        requests->resume = true;
    } else if (strcmp(word, "reload") == 0 && c->job->ntenants && c->job->opt->reread) {
        note(c, "control: reload: all tenants finish their step and are saved, and the config is read anew");
        requests->reload = true;
    } else {
        snprintf(line, sizeof line, "control: '%s' is none of save, sample, stop%s", word,
                 c->job->name                              ? ", pause, resume"
                 : c->job->ntenants && c->job->opt->reread ? ", reload"
                                                           : "");
        note(c, line);
    }
}

void control_poll(struct control *c, struct requests *requests)
{
    char word[WORD];
    uint64_t nsaves = job_status_requested_saves(c->job_status);
    requests->save |= nsaves != c->nsaves;
    c->nsaves = nsaves;
    if (take_word(c, word))
        handle_request(c, word, requests);
}
