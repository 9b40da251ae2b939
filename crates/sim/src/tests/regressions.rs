//! Seeds that once failed, by what was wrong. A seed means what it did then only as long as the
//! workload draws in the same order; the behaviours themselves are tested in the engine's own
//! crate.

use crate::{Options, run};

#[track_caller]
fn holds(seeds: &[u64]) {
    for &seed in seeds {
        if let Err(failure) = run(Options::for_sweep(seed)) {
            panic!("{failure}");
        }
    }
}

// A process died between two chunks of a send: the last one, held out of order, was deposited
// without the first.
#[test]
fn a_send_torn_by_the_death_of_its_process_never_shows_its_last_byte() {
    holds(&[10, 813]);
}

// The failure of a fetch went in place of a chunk that had arrived as data, and was dropped as a
// duplicate.
#[test]
fn a_fetch_from_an_export_withdrawn_meanwhile_ends() {
    holds(&[314, 279]);
}

// The last chunk of an answer came before the word that the middle had been refused.
#[test]
fn a_fetch_through_an_import_given_back_meanwhile_fails_honestly() {
    holds(&[601, 629]);
}

// A flipped bit made a node reject a hello of its own cluster, or a rejection of nobody: the import
// failed at once.
#[test]
fn a_rejection_without_proof_ends_no_import() {
    holds(&[102653, 109422, 149812, 124515, 153390]);
}

// A stranger that still knocked when a short run ended was taken for unrest of the cluster.
#[test]
fn a_short_run_with_a_stranger_ends_quietly() {
    if let Err(failure) = run(Options { steps: 60, ..Options::new(3, 7) }) {
        panic!("{failure}");
    }
}

// Both sides sent again what had arrived, for each would not hear of it before the other's failures
// had come, and these were beyond two packets of it.
#[test]
fn sides_that_wait_for_each_others_failures_go_on() {
    if let Err(failure) = run(Options::new(5, 52)) {
        panic!("{failure}");
    }
}

// An acknowledgement waited for failures of the peer. The only chunk that was to go again, to ask
// for it once more, was known to have arrived: nothing went, and nothing came.
#[test]
fn what_waits_for_failures_alone_ends_with_them() {
    holds(&[301899464908150]);
}
