/* SPDX-License-Identifier: Apache-2.0 */
#include "run/build_id.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

static uint64_t hash_notes(const char *at, size_t nbytes, uint64_t hash)
{
    while (nbytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        const size_t name = (note.n_namesz + 3u) & ~3u, desc = (note.n_descsz + 3u) & ~3u,
                     whole = sizeof note + name + desc;
        if (whole > nbytes)
            break;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && memcmp(at + sizeof note, "GNU", 4) == 0)
            hash = XXH3_64bits_withSeed(at + sizeof note + name, note.n_descsz, hash);
        at += whole;
        nbytes -= whole;
    }
    return hash;
}

/* The program has an empty name. */
static int add_object(struct dl_phdr_info *object, size_t size, void *hash)
{
    (void)size;
    if (object->dlpi_name[0] && !strstr(object->dlpi_name, "libfsdpck"))
        return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_NOTE && part->p_align <= 4) /* the others hold properties */
            *(uint64_t *)hash =
                hash_notes((const char *)(object->dlpi_addr + part->p_vaddr), part->p_memsz, *(uint64_t *)hash);
    }
    return 0;
}

uint64_t build_id(void)
{
    uint64_t hash = 0;
    dl_iterate_phdr(add_object, &hash);
    return hash;
}
