# SPDX-License-Identifier: Apache-2.0
"""What a run shows on a terminal of several widths: something before the first step, a history of losses that stays,
numbers that are whole."""
import fcntl, os, pathlib, pty, re, struct, subprocess, termios

from harness import Failure, Tests

FIXTURES = pathlib.Path(__file__).resolve().parent.parent.parent / "fixtures"
NUMBER = r"-?[0-9.]+(?:e[-+]?[0-9]+)?"
FIELDS = re.compile(
    rf"[0-9]+/60 loss {NUMBER}(?P<trend> \([-+][0-9.]+%\))?(?: norm {NUMBER})?(?: lr {NUMBER})?(?: {NUMBER} tok/s)?"
    rf"(?: {NUMBER} s/it)?(?: ETA [0-9:]+)?(?: [0-9.]+ [kMGT]?B(?: comm [0-9]+ %)?)?"
)
PHASES = re.compile(
    r"(?:tokenizing|loading the model|first step)(?:: [0-9]+ %(?:, [0-9.]+ [kMGT]?B in all)?(?:, [0-9:]+ left)?)?"
)


def on_terminal(columns, command):
    """Everything written to a terminal of so many columns, and the exit code."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=side)
    os.close(side)
    said = b""
    while True:
        try:
            piece = os.read(main, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        said += piece
    os.close(main)
    return said.decode(), process.wait()


class Terminal(Tests):
    def terminal(self):
        config = {
            "model": str(FIXTURES / "tiny-llama-tied"), "data": {"train": str(FIXTURES / "chat.jsonl"), "seq_len": 128},
            "lora": {"r": 4}, "train": {"max_steps": 60, "global_batch_size": 1, "warmup_steps": 1}
        }
        for columns, ranks in ((120, 2), (80, 1), (40, 1), (24, 1), (20, 1)):
            config["output_dir"] = str(self.tmp / f"terminal{columns}")
            command = [*self.runs, str(self.write(f"terminal{columns}", config)), "--ranks", str(ranks)]
            said, code = on_terminal(columns, command)
            if code:
                raise Failure(f"exit code {code}: {said[-400:]}")
            # A line that stays ends with a line feed; one that is drawn again is followed by a carriage return.
            stays = [part.split("\r")[-1] for part in said.replace("\r\n", "\n").split("\n")[:-1]]
            drawn = [
                part.strip()
                for line in said.replace("\r\n", "\n").split("\n")
                for part in line.split("\r")[:-1]
                if part.strip()
            ]
            if any(len(line) >= columns for line in drawn):
                raise Failure(f"{columns} columns: a line that is drawn again fills more: {max(drawn, key=len)}")
            for line in drawn:
                if not FIELDS.fullmatch(line) and not PHASES.fullmatch(line):
                    raise Failure(f"{columns} columns: a line that is cut: '{line}'")
            if any(" comm " in line for line in drawn) != (ranks > 1):
                raise Failure(f"{ranks} ranks: the share of communication: {drawn[-1]}")
            trends = [line for line in drawn if (found := FIELDS.fullmatch(line)) and found["trend"]]
            if bool(trends) != (columns >= 80):
                raise Failure(f"{columns} columns: the trend of the loss: {trends}")
            history = [line for line in stays if line.startswith("step ")]
            if len(history
                   ) < 20 or not history[0].startswith("step 1 of 60 ") or not history[-1].startswith("step 60 of 60 "):
                raise Failure(f"{columns} columns: {len(history)} lines of steps stay")
            first = next(i for i, line in enumerate(drawn) if FIELDS.fullmatch(line))
            if not any(line.startswith("loading the model")
                       for line in drawn[:first]) or not any(line.startswith("first step") for line in drawn[:first]):
                raise Failure(f"{columns} columns: nothing moves before the first step: {drawn[:first]}")
