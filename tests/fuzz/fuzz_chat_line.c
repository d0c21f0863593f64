/* SPDX-License-Identifier: Apache-2.0 */
/* A line of data.train, through a tokenizer and a template of the goldens. Properties: a document has as many ids as
 * labels; a label is -1 or the id; a refused line leaves nothing behind. */
#include <string.h>
#include <train/chat.h>

#include "data/data_impl.h"
#include "fuzz.h"

enum { NVOCAB = 1007 };

static void check_document(const struct data_section *d)
{
    const struct data_section_doc *doc = &d->docs[0];
    uint32_t nsupervised = 0;
    FUZZ_CHECK(d->ndocs == 1 && doc->ntok == d->ntok && doc->ntok > 0);
    for (uint32_t i = 0; i < doc->ntok; i++) {
        FUZZ_CHECK(d->ids[i] >= 0 && d->ids[i] < NVOCAB && d->labels[i] >= -1 && d->labels[i] < NVOCAB);
        nsupervised += i > 0 && d->labels[i] >= 0;
    }
    FUZZ_CHECK(nsupervised == doc->nsupervised);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
    static struct chat *chat;
    static struct chat_coder *coder;
    struct fsdpck_error err = { 0 };
    if (!chat)
        FUZZ_CHECK(chat_open(FUZZ_TOP "/tests/text/goldens/qwen2", &chat, &err) == 0 &&
                   chat_coder_new(chat, &coder, &err) == 0);
    struct fuzz_bytes b = { data, nbytes };
    const struct train_config config = { .data = { .loss_on = (enum chat_loss)fuzz_below(&b, 4) } };
    const struct data_reader reader = { .config = &config, .chat = chat, .nvocab = NVOCAB };
    struct data_section d = { 0 };
    char *line = (char *)fuzz_copy(b.at, b.nbytes);
    int rc = data_add_line(&d, &reader, coder, "data.jsonl", 1, line, b.nbytes, &err);
    FUZZ_CHECK(rc == err.code);
    if (rc == 0)
        check_document(&d);
    else
        FUZZ_CHECK(d.ndocs == 0 && d.ntok == 0 && strstr(err.message, "line 1"));
    data_section_free(&d);
    free(line);
    return 0;
}
