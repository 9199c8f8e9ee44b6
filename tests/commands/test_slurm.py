"""sweep --slurm: the array jobs, what goes on after a kill, and what goes wrong.

In most tests scripts replace Slurm's programs, and a compiler as in test_sweep.py. One test has a real Slurm of
one node, whose daemons it starts and stops itself.
"""
import json
import os
import platform
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from test_bench import FIELDS
from test_config import assert_refused
from test_sweep import Sweep, grid, kill, name
from tools import MHAGEN, SEED, need, run

pytestmark = pytest.mark.skipif(not shutil.which("ninja"), reason="no ninja")

# sbatch, squeue and sinfo. A job is a file with its name and options, and the processes of its tasks.
PROGRAM = r'''#!PYTHON
import json, os, pathlib, re, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
here, program = pathlib.Path("HERE/cluster"), os.path.basename(sys.argv[0])
options = dict(re.fullmatch(r"-*([^=]*)=?(.*)", word, re.S).groups() for word in sys.argv[1:])

def alive(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False

def fail(text):
    sys.exit(f"{program}: error: {text}")

if program == "sinfo":
    asked = options.get("partition", "")
    (here / "asked").write_text(asked)
    print("\n".join(line for line in os.environ["NODES"].split("\n") if asked in line))
elif program == "squeue":
    if "INTERRUPT" in os.environ:
        os.kill(os.getppid(), signal.SIGINT)
    calls = here / "calls"
    calls.write_text(calls.read_text() + "x" if calls.exists() else "x")
    if len(calls.read_text()) <= int(os.environ.get("QUEUE_FAILS", 0)):
        fail("Unable to contact slurm controller")
    for path in sorted(here.glob("*.job")):
        job = json.loads(path.read_text())
        for pid in job["pids"] if job["options"]["job-name"] == options["name"] else []:
            if "PENDING" in os.environ:
                print(path.stem, "PENDING", os.environ["PENDING"])
            elif alive(pid):
                print(path.stem, "RUNNING None")
else:
    if "REFUSE" in os.environ:
        fail(os.environ["REFUSE"])
    number = len(list(here.glob("*.job"))) + 1
    pids = []
    for task in range(1, int(options["array"][2:]) + 1) if "LOSE" not in os.environ else []:
        log = options["output"].replace("%A", str(number)).replace("%a", str(task))
        with open(os.path.join(options["chdir"], log), "a") as out:
            pids.append(subprocess.Popen(["sh", "-c", options["wrap"]], stdout=out, stderr=out, start_new_session=True,
                        cwd=options["chdir"], env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}).pid)
    (here / f"{number}.job").write_text(json.dumps({"options": options, "pids": pids}))
    time.sleep(float(os.environ.get("SUBMITTING", 0)))
    print(number)
'''


class Cluster(Sweep):
    def __init__(self, path):
        super().__init__(path)
        self.jobs_path = path / "cluster"
        self.jobs_path.mkdir()
        (path / "bin").mkdir()
        for program in "sbatch", "squeue", "sinfo":
            text = PROGRAM.replace("PYTHON", sys.executable).replace("HERE", str(path))
            (path / "bin" / program).write_text(text)
            (path / "bin" / program).chmod(0o755)
        self.env.update(PATH=f"{path}/bin:{os.environ['PATH']}", NODES="short* 2 idle\nlong 9 idle")

    def command(self, *args):
        return super().command(*(args if "--slurm" in args else ("--slurm", "", *args)))

    def without(self, *args, **env):
        """A sweep on this machine."""
        return subprocess.run(Sweep.command(self, *args), env={**self.env, **env}, capture_output=True, text=True)

    def start(self, *args, **env):
        return subprocess.Popen(self.command(*args), env={**self.env, **env}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, start_new_session=True)

    def jobs(self):
        return [json.loads(path.read_text()) for path in sorted(self.jobs_path.glob("*.job"))]

    def wait_for(self, condition, seconds=600):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    def noted(self):
        path = self.out / "slurm.job"
        return path.read_text().split() if path.exists() else []

    def kill_tasks(self):
        for job in self.jobs():
            for pid in job["pids"]:
                try:
                    os.killpg(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def timed(self):
        return len(list(self.out.glob("configs/*/time.row")))


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.kill_tasks()


SIX = "{ 1, 2, 3, 4, 5, 6 }"


def ran_once(count=6):
    return sorted(f"{step} {name(seq)}" for step in ("check", "time") for seq in range(1, count + 1))


def test_shards(cluster):
    """Each config is done once, in one of the shards; what has results is not submitted again."""
    cluster.grid(grid(seq=SIX))
    result = cluster.run("--slurm", "--partition=short --time=1:00:00", "--jobs", "1")
    assert (result.returncode, result.stderr) == (0, "")
    assert "submitted Slurm job 1: 6 configs in 2 shards" in result.stdout
    assert "6 of 6 configs: 6 ok, 0 failed" in result.stdout
    job, = cluster.jobs()
    options = job["options"]
    assert options["array"] == "1-2" and {"requeue", "exclusive", "parsable"} <= set(options)
    assert options["time"] == "1:00:00" and options["wrap"].endswith(' "$SLURM_ARRAY_TASK_ID" --jobs 1')
    assert cluster.ran() == ran_once() and not cluster.noted()
    rows = cluster.rows()
    assert len(rows) == 6 and {row["status"] for row in rows.values()} == {"ok"}
    for shard, seqs in (1, (1, 2, 3)), (2, (4, 5, 6)):
        plan = (cluster.out / f"shards/{shard}/build.ninja").read_text()
        assert [seq for seq in range(1, 7) if f"configs/{name(seq)}/time.row" in plan] == list(seqs)
    assert cluster.done() == rows and cluster.ran() == [] and len(cluster.jobs()) == 1
    shutil.rmtree(cluster.out / ".ninja")  # the rows say what is done, not the logs
    shutil.rmtree(cluster.out / "shards")
    assert cluster.done() == rows and cluster.ran() == [] and len(cluster.jobs()) == 1
    cluster.grid(grid(seq="{ 1, 2, 3, 4, 5, 6, 7 }"))
    assert rows.items() <= cluster.done().items() and cluster.jobs()[1]["options"]["array"] == "1-1"


def test_as_without_slurm(cluster):
    """The same rows, also of configs that fail or share their code; here they are only timed again."""
    cluster.grid(grid(seq=SIX, key_block="{ 32, 64 }"))
    times = "us_median", "generate_seconds", "compile_seconds"
    rows = cluster.done(status=1, FAIL_CHECK=name(3))
    assert sum(row["same_as"] is not None for row in rows.values()) == 6
    shutil.rmtree(cluster.out)
    assert cluster.without(FAIL_CHECK=name(3)).returncode == 1
    for command, row in cluster.rows().items():
        assert {**rows[command], **{key: row[key] for key in times}} == row


@pytest.mark.parametrize("options, nodes, args, partition, shards", [
    ("", "short* 2 idle\nlong 9 idle", [], "", 2), ("", "short* 2 idle\nlong 9 idle", ["--shards", "4"], None, 4),
    ("", "short* 40 idle", ["--shards", "40"], None, 6), ("-p long", "long 3 idle\nlong 2 mixed", [], "long", 3),
    ("--partition=long", "long 3 allocated\nlong 1 mixed-\nlong 9 drained", [], "long", 4),
    ("-plong", "long 3 down*", [], "long", 1), ("--partition long", "", [], "long", 1)])
def test_how_many_shards(options, nodes, args, partition, shards, cluster):
    """One for each idle node of the partition, or that is up; or as said; at most one for each config."""
    cluster.grid(grid(seq=SIX))
    cluster.done("--slurm", options, *args, NODES=nodes)
    assert cluster.jobs()[0]["options"]["array"] == f"1-{shards}"
    asked = cluster.jobs_path / "asked"
    assert (asked.read_text() if asked.exists() else None) == partition


# ---- kills ----

def test_killed_mhagen(cluster):
    """The job goes on; the same command waits for it. Nothing is submitted or run twice."""
    cluster.grid(grid(seq=SIX))
    process = cluster.start(SECONDS_EACH="1")
    cluster.wait_for(lambda: len(cluster.noted()) == 2)
    kill(process, "mhagen")
    assert_refused(cluster.without("--quiet"), "Slurm job 1 is at work in it; --slurm waits for it, `scancel 1`")
    assert_refused(cluster.without("--quiet", QUEUE_FAILS="99"), "Slurm job 1 may be at work in it: squeue ended",
                   f"if it is not, remove {cluster.out}/slurm.job")
    result = cluster.run()
    assert result.returncode == 0 and "Slurm job 1: " in result.stdout and "submitted" not in result.stdout
    assert len(cluster.rows()) == 6 and cluster.ran() == ran_once() and not cluster.noted()


def test_killed_while_submitting(cluster):
    """The job is found by its name, which is noted first."""
    cluster.grid(grid(seq=SIX))
    process = cluster.start(SUBMITTING="2", SECONDS_EACH="0.5")
    cluster.wait_for(cluster.jobs)
    kill(process, "mhagen")
    assert len(cluster.noted()) == 1
    rows = cluster.done()
    assert len(rows) == 6 and len(cluster.jobs()) == 1 and cluster.ran() == ran_once()


@pytest.mark.parametrize("after", [0, 0.2, 1, 1.1])
def test_interrupt(after, cluster):
    """While squeue runs, or sleep, or between them."""
    cluster.grid(grid(seq=SIX))
    process = cluster.start(SECONDS_EACH="1")
    cluster.wait_for(lambda: "shards" in (process.stdout.readline() or pytest.fail("no job")))
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, err = process.communicate(timeout=600)
    assert process.returncode in (2, -signal.SIGINT)  # where a program runs, and where none does
    assert err.endswith("mhagen: interrupted; the job goes on, and the same command waits for it\n")
    assert len(cluster.done()) == 6 and len(cluster.jobs()) == 1 and cluster.ran() == ran_once()


def test_an_interrupt_as_a_program_ends(cluster):
    """It is mhagen's too, although the program does not end by it."""
    cluster.grid(grid())
    result = cluster.run("--quiet", INTERRUPT="1")
    assert_refused(result, "mhagen: interrupted; the job goes on")
    assert len(cluster.done()) == 2 and len(cluster.jobs()) == 1


def test_killed_task(cluster):
    """What it has left undone goes to another job; results that are there stay."""
    cluster.grid(grid(seq=SIX))
    process = cluster.start(SECONDS_EACH="0.5")
    cluster.wait_for(lambda: (cluster.out / f"configs/{name(1)}/time.row").exists())
    first = (cluster.out / f"configs/{name(1)}/time.row").read_bytes()
    cluster.kill_tasks()
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "submitted Slurm job 2" in out and len(cluster.jobs()) == 2
    rows = cluster.rows()
    assert len(rows) == 6 and {row["status"] for row in rows.values()} == {"ok"}
    assert (cluster.out / f"configs/{name(1)}/time.row").read_bytes() == first
    assert cluster.ran().count(f"time {name(1)}") == 1


@pytest.mark.slow
def test_many_kills(cluster):
    """Of mhagen and of tasks, at any time; a result that was there stays what it is, and none is made twice."""
    cluster.grid(grid(seq=SIX, h="{ 1, 2 }"))
    draw, before = random.Random(SEED), {}
    for _ in range(15 if SEED == "all" else 8):
        process = cluster.start(SECONDS_EACH="0.2")
        time.sleep(draw.uniform(0.05, 3))
        if draw.random() < 0.5:
            kill(process, "mhagen")
        else:
            cluster.kill_tasks()
            process.communicate(timeout=600)
        now = {path: path.read_bytes() for path in cluster.out.glob("configs/*/time.row")}
        assert before.items() <= now.items()
        before = now
    rows = cluster.done()
    assert len(rows) == 12 and {row["status"] for row in rows.values()} == {"ok"}
    assert all(path.read_bytes() == row for path, row in before.items())


def test_a_job_that_nobody_waits_for(cluster):
    """Does nothing: another one was submitted in its place."""
    cluster.grid(grid(seq="3"))
    cluster.done()
    for noted in "", "mhagen-2 9\n":
        (cluster.out / "slurm.job").write_text(noted)
        result = subprocess.run([MHAGEN, "sweep-shard", "mhagen-1", "1"], cwd=cluster.out, text=True,
                                capture_output=True)
        assert_refused(result, "sweep-shard: the sweep waits for another job")
    step = [MHAGEN, "sweep-step", "--under", "shards/1", "common/x/built"]
    assert_refused(subprocess.run(step, cwd=cluster.out, text=True, capture_output=True), "no sweep is running here")


# ---- what goes wrong ----

def test_without_slurm(cluster):
    cluster.grid(grid())
    for program in "sinfo", "squeue", "sbatch":
        (cluster.path / "bin" / program).unlink()
        assert_refused(cluster.run("--quiet", PATH=f"{cluster.path}/bin"),
                       f"sweep: --slurm needs {program}, which is not in $PATH")
    assert not cluster.out.exists()


@pytest.mark.parametrize("args, message", [
    (["--slurm", "", "--shards", "0"], "option '--shards': '0' is not a number from 1 to 999999"),
    (["--shards", "2"], "sweep: --shards needs --slurm"), (["--slurm"], "option '--slurm' requires an argument"),
])
def test_refused_options(args, message, cluster):
    cluster.grid(grid())
    assert_refused(cluster.without(*args), message)


def test_sbatch_refuses(cluster):
    cluster.grid(grid())
    result = cluster.run("--slurm", "--partition=zz", "--quiet", REFUSE="invalid partition specified: zz")
    assert_refused(result, "sbatch ended with status 1: sbatch: error: invalid partition specified: zz")
    assert len(cluster.done()) == 2


def test_controller_that_restarts(cluster):
    cluster.grid(grid())
    assert len(cluster.done(QUEUE_FAILS="2")) == 2 and len(cluster.jobs()) == 1


def test_controller_that_is_gone(cluster):
    cluster.grid(grid())
    assert_refused(cluster.run("--quiet", QUEUE_FAILS="99"),
                   "squeue ended with status 1: squeue: error: Unable to contact slurm controller")
    assert len(cluster.done()) == 2 and len(cluster.jobs()) == 1


def test_job_that_never_starts(cluster):
    cluster.grid(grid())
    result = cluster.run("--quiet", PENDING="PartitionTimeLimit")
    assert_refused(result, "Slurm job 1 waits for a reason that does not pass by itself, PartitionTimeLimit; "
                   "`scancel 1`")


def test_jobs_that_vanish(cluster):
    cluster.grid(grid())
    result = cluster.run("--quiet", LOSE="1")
    assert_refused(result, "no result of 2 configs from 4 jobs in a row; the last, Slurm job 4: its tasks have left "
                   "no log; do the nodes share this directory?")
    assert len(cluster.jobs()) == 4 and len(cluster.done()) == 2


def test_tasks_that_fail(cluster):
    """The error says what the last one said."""
    cluster.grid(grid())
    result = cluster.run("--quiet", FAIL_COMPILE=name(3), FAIL_WITH="No space left on device")
    assert_refused(result, "no result of 1 configs from 4 jobs in a row; the last, Slurm job 5: ",
                   "No space left on device")
    assert len(cluster.rows()) == 1 and len(cluster.done()) == 2


def test_another_compiler_on_the_node(cluster):
    cluster.grid(grid())
    compiler = cluster.path / "compiler"
    compiler.write_text(compiler.read_text().replace('"compiler 1"', '"compiler ${SLURM_ARRAY_TASK_ID:+2}"'))
    assert_refused(cluster.run("--quiet"), "compiler is 'compiler 2' on this node, and 'compiler ' where the sweep")


# ---- a real Slurm ----

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={path}/munge.sock
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={path}/state
SlurmdSpoolDir={path}/spool
SlurmctldPidFile={path}/slurmctld.pid
SlurmdPidFile={path}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=short Nodes={host} Default=YES MaxTime=10:00 State=UP
"""


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Slurm:
    """munged, slurmctld and slurmd of a cluster of this machine, with all they need in a directory."""

    def __init__(self, path):
        self.path, self.daemons = path, []
        self.env = {**os.environ, "SLURM_CONF": str(path / "slurm.conf")}
        for folder in "state", "spool":
            (path / folder).mkdir()
        (path / "slurm.conf").write_text(CONF.format(
            host=platform.node().split(".")[0], path=path, ports=free_ports(2), cpus=os.cpu_count(),
            user=pwd.getpwuid(os.geteuid()).pw_name))

    def start(self):
        path = self.path
        run("mungekey", "--create", f"--keyfile={path}/munge.key")
        files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        self.daemon("munged", "--foreground", "--force", *(f"--{key}={path}/{file}" for key, file in files.items()))
        self.until(lambda: (path / "munge.sock").exists())
        for program in "slurmctld", "slurmd":
            self.daemon(program, "-D", "-f", path / "slurm.conf")
        self.until(lambda: "idle" in self.ask("sinfo", "--noheader", "--format=%T"))

    def daemon(self, *command):
        with open(self.path / f"{command[0]}.log", "w") as log:
            self.daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.env))

    def until(self, condition, seconds=600):
        """Skips the test if it does not come, or a daemon has ended."""
        end = time.monotonic() + seconds
        while not condition():
            dead = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if dead or time.monotonic() > end:
                logs = [line for path in sorted(self.path.glob("*.log")) for line in path.read_text().splitlines()
                        if "rror" in line]
                pytest.skip(f"Slurm does not run here: {dead or 'no node is idle'}: {'; '.join(logs[-3:])}")
            time.sleep(0.1)

    def ask(self, *command):
        return subprocess.run(command, env=self.env, capture_output=True, text=True).stdout

    def stop(self):
        self.ask("scancel", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


@pytest.fixture
def slurm(tmp_path):
    for program in "munged", "mungekey", "slurmctld", "slurmd", "sbatch":
        need(program)
    slurm = Slurm(tmp_path)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


@pytest.mark.slow
def test_real_slurm(slurm, tmp_path):
    """Two shards; one task is killed, one requeued, and mhagen itself killed and started again. Each result is there
    once, and as on one machine but for the times."""
    sweep = Sweep(tmp_path)
    sweep.env = {**slurm.env, "CC": "cc -O1"}
    sweep.grid(grid(seq="{ 3, 4, 5 }", isa='{ "scalar", "avx2" }', key_block="{ 32, 64 }"))
    args = "--samples", "400", "--jobs", "1"
    on_slurm = sweep.command("--slurm", "--oversubscribe --time=5:00", "--shards", "2", *args)

    def timed():
        return {path: path.read_bytes() for path in sweep.out.glob("configs/*/time.row")}

    def running():
        return slurm.ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()

    def wait_for(condition):
        end = time.monotonic() + 600
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    first = subprocess.Popen(on_slurm, env=sweep.env, stdout=subprocess.DEVNULL)
    wait_for(lambda: len(running()) == 2 and list(sweep.out.glob("configs/*/check.row")))
    kill(first, "mhagen")
    job, = {task.split("_")[0] for task in running()}
    assert job == (sweep.out / "slurm.job").read_text().split()[1]
    slurm.ask("scontrol", "requeue", f"{job}_1")
    slurm.ask("scancel", "--signal=KILL", "--full", f"{job}_2")
    before = timed()
    second = subprocess.Popen(on_slurm, env=sweep.env, stdout=subprocess.PIPE, text=True)
    # Slurm lets what is requeued wait for two minutes, if nobody is in a hurry.
    wait_for(lambda: "PENDING" in slurm.ask("squeue", "--noheader", "--array", f"--jobs={job}", "--format=%T"))
    slurm.ask("scontrol", "update", f"jobid={job}_1", "starttime=now+3")
    out, _ = second.communicate(timeout=600)
    assert second.returncode == 0, out
    assert f"Slurm job {job}: " in out and "submitted Slurm job" in out and not (sweep.out / "slurm.job").exists()
    assert before.items() <= timed().items() and len(timed()) == 6
    assert "Restarts=1" in slurm.ask("scontrol", "show", "job", f"{job}_1")

    rows = sweep.rows()
    shutil.rmtree(sweep.out)
    assert subprocess.run(sweep.command(*args), env=sweep.env, stdout=subprocess.DEVNULL).returncode == 0
    measured = {field for field in FIELDS if re.search("us_|_seconds|gflops|peak_low|fraction|disturbed", field)}
    here = sweep.rows()
    assert list(rows) == list(here) and len(rows) == 12
    for command, row in rows.items():
        assert row["status"] == "ok" and {key for key in row if row[key] != here[command][key]} <= measured
