/* SPDX-License-Identifier: Apache-2.0 */
/* Writes .metadata as torch 2.4 to 2.15 load it: Metadata with five fields, five-tuple TensorProperties, no transforms.
 * A value that repeats (class, key, name, file) is put into the pickle's memo at its first use. Knows no checkpoint and
 * no file. */
#include "torch/dcp/metadata.h"

#include <string.h>

#include "base/hash.h"
#include "torch/pickle/write.h"

#define METADATA "torch.distributed.checkpoint.metadata"

/* Memo entries with fixed numbers. After them come a tuple of properties for each dtype, then the strings. */
enum fixed {
    TENSOR_CLASS,
    PROPERTIES_CLASS,
    CHUNK_CLASS,
    BYTES_CLASS,
    INDEX_CLASS,
    INFO_CLASS,
    SIZE_CLASS, /* GLOBALs */
    LAYOUT,
    MEMORY_FORMAT, /* calls of one argument */
    KEY_PROPERTIES,
    KEY_SIZE,
    KEY_CHUNKS,
    KEY_OFFSETS,
    KEY_SIZES,
    KEY_FQN,
    KEY_INDEX,
    KEY_OFFSET,
    KEY_PATH,
    KEY_LENGTH,
    PROPERTIES_OF
};
#define FIRST_STRING ((uint64_t)PROPERTIES_OF + FSDPCK_NDTYPES)
_Static_assert(PROPERTIES_OF + FSDPCK_NDTYPES <= 64, "`known` has a bit for each fixed number");

static const char *const fixed_text[PROPERTIES_OF] = {
    [TENSOR_CLASS] = "c" METADATA "\nTensorStorageMetadata\n",
    [PROPERTIES_CLASS] = "c" METADATA "\nTensorProperties\n",
    [CHUNK_CLASS] = "c" METADATA "\nChunkStorageMetadata\n",
    [BYTES_CLASS] = "c" METADATA "\nBytesStorageMetadata\n",
    [INDEX_CLASS] = "c" METADATA "\nMetadataIndex\n",
    [INFO_CLASS] = "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n",
    [SIZE_CLASS] = "ctorch\nSize\n",
    [LAYOUT] = "ctorch.serialization\n_get_layout\n",
    [MEMORY_FORMAT] = "c" METADATA "\n_MEM_FORMAT_ENCODING\n",
    [KEY_PROPERTIES] = "properties",
    [KEY_SIZE] = "size",
    [KEY_CHUNKS] = "chunks",
    [KEY_OFFSETS] = "offsets",
    [KEY_SIZES] = "sizes",
    [KEY_FQN] = "fqn",
    [KEY_INDEX] = "index",
    [KEY_OFFSET] = "offset",
    [KEY_PATH] = "relative_path",
    [KEY_LENGTH] = "length",
};

static void put(struct fsdpck_dcp_writer *w, const char *ops)
{
    fsdpck_text_add(&w->text, ops, strlen(ops));
}

static void put_int(struct fsdpck_dcp_writer *w, uint64_t value)
{
    uint8_t b[FSDPCK_PICKLE_INT_MAX];
    fsdpck_text_add(&w->text, b, fsdpck_pickle_put_int(b, value));
}

/* BINPUT, BINGET and their long forms. */
static void put_memo(struct fsdpck_dcp_writer *w, const char ops[2], uint64_t number)
{
    uint8_t b[5] = { (uint8_t)ops[number > 255] };
    fsdpck_put32(b + 1, (uint32_t)number);
    fsdpck_text_add(&w->text, b, number > 255 ? 5 : 2);
}
static void put_put(struct fsdpck_dcp_writer *w, uint64_t number)
{
    put_memo(w, "qr", number);
}
static void put_get(struct fsdpck_dcp_writer *w, uint64_t number)
{
    put_memo(w, "hj", number);
}

static void put_text(struct fsdpck_dcp_writer *w, const char *s)
{
    uint8_t b[5] = { 'X' };
    fsdpck_put32(b + 1, (uint32_t)strlen(s));
    fsdpck_text_add(&w->text, b, sizeof b);
    put(w, s);
}

/* Returns true if the fixed value is in the memo, and recalls it; otherwise marks it as present. */
static bool get_memo(struct fsdpck_dcp_writer *w, unsigned number)
{
    bool known = w->known >> number & 1;
    if (known)
        put_get(w, number);
    w->known |= UINT64_C(1) << number;
    return known;
}

static void put_fixed(struct fsdpck_dcp_writer *w, enum fixed f)
{
    if (get_memo(w, f))
        return;
    if (f >= KEY_PROPERTIES)
        put_text(w, fixed_text[f]);
    else
        put(w, fixed_text[f]);
    if (f == LAYOUT)
        put_text(w, "torch.strided");
    if (f == MEMORY_FORMAT)
        put_int(w, 0); /* contiguous */
    if (f == LAYOUT || f == MEMORY_FORMAT)
        put(w, "\x85R");
    put_put(w, f);
}

static void put_string(struct fsdpck_dcp_writer *w, const char *s)
{
    size_t old = SIZE_MAX, next = FIRST_STRING + w->strings.count;
    if (w->text.failed || fsdpck_names_add(&w->strings, s, next, &old, NULL) || next > UINT32_MAX) {
        w->text.failed = true;
        return;
    }
    if (old != SIZE_MAX) {
        put_get(w, old);
        return;
    }
    put_text(w, s);
    put_put(w, next);
}

static void put_size(struct fsdpck_dcp_writer *w, uint32_t ndim, const uint64_t *values)
{
    put_fixed(w, SIZE_CLASS);
    put(w, "(");
    for (uint32_t d = 0; d < ndim; d++)
        put_int(w, values[d]);
    put(w, "t\x85R");
}

/* Begins a new object and the dict that becomes its state; "ub" closes both. */
static void put_object(struct fsdpck_dcp_writer *w, enum fixed class)
{
    put_fixed(w, class);
    put(w, ")\x81}(");
}

/* (dtype, layout, requires_grad, memory format, pin_memory) */
static void put_properties(struct fsdpck_dcp_writer *w, enum fsdpck_dtype dtype)
{
    unsigned number = PROPERTIES_OF + (unsigned)dtype;
    put_fixed(w, PROPERTIES_CLASS);
    put(w, ")\x81");
    if (!get_memo(w, number)) {
        put(w, "(ctorch\n");
        put(w, fsdpck_dtype_info(dtype)->name);
        put(w, "\n");
        put_fixed(w, LAYOUT);
        put(w, "\x89");
        put_fixed(w, MEMORY_FORMAT);
        put(w, "\x89t");
        put_put(w, number);
    }
    put(w, "b");
}

void fsdpck_dcp_begin(struct fsdpck_dcp_writer *w)
{
    put(w, "\x80\x02"
           "c" METADATA "\nMetadata\n)\x81}(");
    put_text(w, "state_dict_metadata");
    put(w, "}(");
}

void fsdpck_dcp_tensor(struct fsdpck_dcp_writer *w, const char *name, enum fsdpck_dtype dtype, uint32_t ndim,
                       const uint64_t *shape)
{
    put_string(w, name);
    put_object(w, TENSOR_CLASS);
    put_fixed(w, KEY_PROPERTIES);
    put_properties(w, dtype);
    put_fixed(w, KEY_SIZE);
    put_size(w, ndim, shape);
    put_fixed(w, KEY_CHUNKS);
    put(w, "](");
}

void fsdpck_dcp_chunk(struct fsdpck_dcp_writer *w, uint32_t ndim, const uint64_t *offset, const uint64_t *size)
{
    put_object(w, CHUNK_CLASS);
    put_fixed(w, KEY_OFFSETS);
    put_size(w, ndim, offset);
    put_fixed(w, KEY_SIZES);
    put_size(w, ndim, size);
    put(w, "ub");
}

void fsdpck_dcp_tensor_end(struct fsdpck_dcp_writer *w)
{
    put(w, "eub");
}

void fsdpck_dcp_item(struct fsdpck_dcp_writer *w, const char *name)
{
    put_string(w, name);
    put_fixed(w, BYTES_CLASS);
    put(w, ")\x81");
}

void fsdpck_dcp_paths_begin(struct fsdpck_dcp_writer *w)
{
    put(w, "u");
    put_text(w, "planner_data");
    put(w, "}(");
}

void fsdpck_dcp_path(struct fsdpck_dcp_writer *w, const char *name, const struct fsdpck_key *path, uint32_t npath)
{
    put_string(w, name);
    put(w, "(");
    if (!npath)
        put_string(w, name);
    for (uint32_t i = 0; i < npath; i++)
        if (path[i].str)
            put_string(w, path[i].str);
        else
            put_int(w, path[i].position);
    put(w, "t");
}

void fsdpck_dcp_storage_begin(struct fsdpck_dcp_writer *w)
{
    put(w, "u");
    put_text(w, "storage_data");
    put(w, "}(");
}

void fsdpck_dcp_storage(struct fsdpck_dcp_writer *w, const char *name, uint32_t ndim, const uint64_t *offset,
                        uint64_t index, const char *file, uint64_t item_offset, uint64_t item_nbytes)
{
    put_object(w, INDEX_CLASS);
    put_fixed(w, KEY_FQN);
    put_string(w, name);
    put_fixed(w, KEY_INDEX);
    if (offset)
        put_int(w, index);
    else
        put(w, "N");
    put_fixed(w, KEY_OFFSET);
    if (offset)
        put_size(w, ndim, offset);
    else
        put(w, "N");
    put(w, "ub");
    put_object(w, INFO_CLASS);
    put_fixed(w, KEY_PATH);
    put_string(w, file);
    put_fixed(w, KEY_OFFSET);
    put_int(w, item_offset);
    put_fixed(w, KEY_LENGTH);
    put_int(w, item_nbytes);
    put(w, "ub");
}

void fsdpck_dcp_end(struct fsdpck_dcp_writer *w)
{
    put(w, "u");
    put_text(w, "storage_meta");
    put(w, "N");
    put_text(w, "version");
    put(w, "Nub.");
}

void fsdpck_dcp_free(struct fsdpck_dcp_writer *w)
{
    fsdpck_text_free(&w->text);
    fsdpck_names_free(&w->strings);
}
