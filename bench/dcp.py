#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times torch.distributed.checkpoint's load(), save() and async_save() through fsdpck's storages and PyTorch's.

usage: dcp.py BUILD WORKDIR [--mib 512] [--runs 5] [--ranks 1] [--jobs load,save,stall]

Each rank holds bf16 tensors of 16 MiB, --mib in all. The storages take turns, --runs times; the table has medians of
the slowest rank, without imports, and the processor seconds of all ranks. PyTorch's writes and reads without hashes,
ours with; all saves sync. Each reader reads the directory that its writer wrote, into tensors that exist; "cold" drops
it from the page cache first. "The disk" reads or writes as many bytes past the page cache (bench/disk). The stall is
the time until async_save() returns; "copy" is one copy of the rank's bytes into memory that exists."""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

TENSOR_NBYTES, COLUMNS = 16 << 20, 4096


def drop(folder):
    """Takes the files of a folder out of the page cache."""
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Rank:
    """One rank of the processes that are measured."""

    def __init__(self, rank, a, folder, results):
        import torch
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from fsdpck.torch import AsyncStager, StorageReader, StorageWriter
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "rendezvous"), rank=rank,
                                world_size=a.ranks)
        self.rank, self.folder, self.results, self.dcp, self.dist = rank, folder, results, dcp, dist
        self.disk = os.path.join(a.build, "bench", "disk")
        self.group = dist.new_group(backend="gloo")
        count, shape = max(1, (a.mib << 20) // a.ranks // TENSOR_NBYTES), (TENSOR_NBYTES // 2 // COLUMNS, COLUMNS)
        self.state = {"rank%d.%d" % (rank, i): torch.randn(shape).bfloat16() for i in range(count)}
        self.copies = {name: torch.zeros_like(t) for name, t in self.state.items()}
        self.nbytes = count * TENSOR_NBYTES
        self.writers = {"FileSystemWriter": lambda p: dcp.FileSystemWriter(p, sync_files=True),
                        "StorageWriter": StorageWriter}
        self.readers = {"FileSystemReader": dcp.FileSystemReader, "StorageReader": StorageReader}
        self.stagers = {"DefaultStager": DefaultStager(StagingOptions(False, False, False, False)),
                        "AsyncStager": AsyncStager()}

    def at(self, name):
        return os.path.join(self.folder, name)

    def timed(self, name, work, wait=lambda out: None):
        """The seconds of work(), and the processor seconds of it and of wait()."""
        self.dist.barrier()
        start, cpu = time.perf_counter(), sum(os.times()[:4])
        out = work()
        seconds = time.perf_counter() - start
        wait(out)
        cpu = sum(os.times()[:4]) - cpu
        self.dist.barrier()
        self.results.put((name, self.rank, seconds, cpu))

    def removed(self, path):
        self.dist.barrier()
        if self.rank == 0:
            shutil.rmtree(path, ignore_errors=True)
        self.dist.barrier()

    # --- jobs; each is called once a turn ---

    def save(self):
        for name, writer in self.writers.items():
            self.timed("save, " + name, lambda: self.dcp.save(self.state, storage_writer=writer(self.at("out"))))
            self.removed(self.at("out"))
        path = self.at("plain.%d" % self.rank)
        self.timed("save, the disk", lambda: subprocess.run([self.disk, "write", path, str(self.nbytes)], check=True,
                                                            stdout=subprocess.DEVNULL))
        os.unlink(path)

    def load(self):
        for reader, writer in zip(self.readers, self.writers.values()):
            path = self.at("for " + reader)
            if not os.path.exists(path):
                self.dist.barrier()
                self.dcp.save(self.state, storage_writer=writer(path))
            for state in "warm", "cold":
                self._load(state, reader, path)
        name = os.path.join(path, "__%d_0.distcp" % self.rank)
        drop(path)
        self.timed("load cold, the disk", lambda: subprocess.run([self.disk, "read", name], check=True,
                                                                 stdout=subprocess.DEVNULL))

    def _load(self, state, reader, path):
        for t in self.copies.values():
            t.zero_()
        if state == "warm":
            for name in os.listdir(path):
                subprocess.run(["cat", os.path.join(path, name)], check=True, stdout=subprocess.DEVNULL)
        elif self.rank == 0:
            drop(path)
        self.timed("load %s, %s" % (state, reader),
                   lambda: self.dcp.load(self.copies, storage_reader=self.readers[reader](path)))
        wrong = [name for name, t in self.state.items() if not t.equal(self.copies[name])]
        assert not wrong, "%s read other values of %s" % (reader, wrong)

    def stall(self):
        def background(writer, stager=None):
            return self.dcp.async_save(self.state, storage_writer=writer(self.at("out")), process_group=self.group,
                                       async_stager=stager)

        ways = [(name, writer, None) for name, writer in self.writers.items()]
        ways += [(name, self.writers["StorageWriter"], stager) for name, stager in self.stagers.items()]
        for name, writer, stager in ways:
            self.timed("stall, " + name, lambda: background(writer, stager), lambda out: out.result())
            self.removed(self.at("out"))
        self.timed("stall, copy", lambda: [self.copies[name].copy_(t) for name, t in self.state.items()])


def measure(rank, a, folder, results):
    of_rank = Rank(rank, a, folder, results)
    for job in a.jobs.split(","):
        for _ in range(a.runs):
            getattr(of_rank, job)()
        if rank == 0:
            for reader in of_rank.readers:
                shutil.rmtree(of_rank.at("for " + reader), ignore_errors=True)
    of_rank.dist.destroy_process_group()


def table(a, rows):
    """rows: (name, rank, seconds, processor seconds), turn by turn."""
    turns = {}
    for name, rank, seconds, cpu in rows:
        turns.setdefault(name, {}).setdefault(rank, []).append((seconds, cpu))
    found = {}
    for name, ranks in turns.items():
        each = list(zip(*ranks.values()))  # a turn: (seconds, processor seconds) of each rank
        found[name] = (statistics.median(max(s for s, _ in turn) for turn in each),
                       statistics.median(sum(c for _, c in turn) for turn in each))
    print("| %d MiB, %d ranks | seconds | processor seconds | PyTorch's over it |" % (a.mib, a.ranks))
    print("|---|---|---|---|")
    for name, (seconds, cpu) in found.items():
        job = name.split(",")[0]
        theirs = next(s for n, (s, _) in found.items() if n.startswith(job + ", FileSystem"))
        print("| %s | %.3f | %.2f | %.2f |" % (name, seconds, cpu, theirs / seconds))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("workdir")
    p.add_argument("--mib", type=int, default=512)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--jobs", default="load,save,stall")
    a = p.parse_args()
    sys.path.insert(0, os.path.abspath(os.path.join(a.build, "python")))
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
    results, rows = context.SimpleQueue(), []
    with tempfile.TemporaryDirectory(dir=a.workdir) as folder:
        ranks = [context.Process(target=measure, args=(r, a, folder, results)) for r in range(a.ranks)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        if any(rank.exitcode for rank in ranks):
            sys.exit("a rank failed")
    while not results.empty():
        rows.append(results.get())
    table(a, rows)


if __name__ == "__main__":
    main()
