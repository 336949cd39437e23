"""What a pool has room for."""

import pytest

from kvdiag.scale.room import amount, crowded, free, room, short, why_none


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "fits"),
    [
        ([{"CPU": 4}], 1, 0, 4),
        ([{"CPU": 4}, {"CPU": 3}, {}], 2, 0, 3),
        ([{"CPU": 64, "GPU": 8}], 1, 1, 8),
        ([{"CPU": 64, "GPU": 8}], 32, 1, 2),
        ([{"CPU": 64, "GPU": 2}], 1, 0.4, 4),  # two on each, and a fifth would be on both
        ([{"CPU": 64, "GPU": 1}], 1, 0.1, 10),
        ([{"CPU": 64, "GPU": 3}, {"CPU": 64, "GPU": 1}], 1, 2, 1),
        ([{"CPU": 64}], 1, 1, 0),
        ([], 1, 0, 0),
    ],
)
def test_workers_that_fit(nodes, cpus, gpus, fits):
    assert room(nodes, cpus, gpus) == fits


def test_why_none_fits_names_the_flag_and_the_mend():
    assert why_none([{"CPU": 2}], 1) == (
        "--gpus-per-worker 1: no node of the cluster has a GPU; leave the flag out to run on CPUs"
    )
    assert "no node of the cluster has more than 2; give 2 or fewer" in why_none([{"CPU": 8, "GPU": 2}], 4)
    assert "--num-cpus" in why_none([{}], 0)


@pytest.mark.parametrize(
    ("cores", "workers", "threads", "mend"),
    [
        ([2], 2, 1, None),
        ([2], 2, 2, "2 workers x 2 threads share 2 cores and slow each other; give --threads 1"),
        ([8], 2, 8, "give --threads 4"),
        ([4, 4], 2, 3, None),
        ([4, 4], 3, 4, "give --threads 2"),
        ([2], 3, 1, "give --workers 2"),
        ([2], 3, 2, "give --threads 1 and --workers 2"),
    ],
)
def test_more_threads_than_cores(cores, workers, threads, mend):
    told = crowded([{"CPU": n} for n in cores], workers, threads)
    assert told == [] if mend is None else told[0].endswith(mend)


def test_resources_in_words():
    assert amount(1, 0) == "1 CPU"
    assert amount(2, 0.5) == "2 CPUs and 0.5 GPUs"
    assert amount(0, 0) == "nothing"


def test_too_few_places_are_told_with_what_each_worker_takes():
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}]
    assert short(nodes, 8, 1, 0) == []
    assert short(nodes, 3, 1, 1) == [
        "--workers 3: there is room for 1 at a time, 1 CPU and 1 GPU each; the others wait"
    ]


def test_what_is_free_of_a_cluster():
    assert free({"CPU": 1.0}, {"CPU": 4.0, "GPU": 2.0}) == "of the cluster's 4 CPUs and 2 GPUs, 1 CPU are free"
    assert free({}, {"CPU": 4.0}) == "of the cluster's 4 CPUs, nothing are free"
