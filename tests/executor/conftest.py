"""Real parts that the slow tests share: Ray, a tiny random model, engines of TP 1 and 2 (whose start is the cost)."""

import asyncio
import sys

import psutil
import pytest

VOCABULARY = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(61))]


def runs(process):
    """Whether a psutil.Process runs: neither gone, which it may be between two questions, nor a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class RunInMemory:
    """A run as turns, rounds and tails see it; its events are kept."""

    name, step_number = "a", 0

    def __init__(self):
        self.events = []

    def event(self, event, /, **fields):
        self.events.append((event, fields))

    def told(self, event):
        """The fields of each event of a kind."""
        return [fields for name, fields in self.events if name == event]


def make_tiny_model(folder, seed=0):
    """A random 2-layer Llama whose heads allow TP 2, with its tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(VOCABULARY),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
            initializer_range=0.2,  # peaked enough that greedy decoding tells two sets of weights apart
        )
    )
    model.save_pretrained(folder)
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def torch_seeded(request):
    """Random tensors come from pytest's seed too, whatever ran before in this process."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(getattr(request.config.option, "randomly_seed", 1))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def loop():
    """One event loop for all tests that share engines: their pumps live on it."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def nodes():
    """A Ray cluster of two nodes with two devices each, on this machine; all that a test starts in it sits there."""
    from benchmarks.ray_nodes import RayNodes

    with RayNodes([2, 2]) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster


@pytest.fixture(scope="session")
def ray(nodes):
    """This process is connected to that cluster."""
    import ray

    from rlplan.executor.processes.actors import start_ray

    start_ray()
    yield
    ray.shutdown()  # before the cluster ends: Ray ends a process whose cluster is gone


@pytest.fixture(scope="session")
def shared_engines(tiny_model, loop, ray):
    from .shared_engines import SharedEngines

    engines = SharedEngines(tiny_model, loop)
    engines.start()
    yield engines
    engines.end()


@pytest.fixture
def fleet(shared_engines):
    """Two engines of TP 1 and one of TP 2, up and awake; what a test leaves behind in them is removed."""
    yield shared_engines.fleet
    shared_engines.reset()


@pytest.fixture
def execute(fleet, shared_engines, loop):
    """Call `rlplan execute` in this process on the shared engines: only its trainers and reward workers start."""
    from rlplan.cli.main import cli
    from rlplan.executor.engines import fleet as module

    def run(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "Fleet", shared_engines.lent())
            patch.setattr(asyncio, "run", loop.run_until_complete)
            return cli.main(["execute", *map(str, arguments), "--json"], standalone_mode=False)

    return run
