//! Whatever becomes of an operation's attempts, the client says the truth about it: see [`world`](crate::world).

use crate::world::{EVENTS, Event, Keeping, all_of, run_all, some_of};

fn a_sample() -> impl Iterator<Item = Vec<Event>> {
    all_of(1).chain(all_of(2)).chain(some_of(3, 300)).chain(some_of(4, 300))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_the_truth_with_a_journal_on_disk() {
    run_all(Keeping::File, a_sample()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_the_truth_without_a_journal() {
    run_all(Keeping::Nothing, a_sample()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "ten thousand sequences take a minute or two; run it after changing the delivery"]
async fn it_says_the_truth_in_every_sequence_of_three() {
    assert_eq!(run_all(Keeping::File, all_of(3)).await, EVENTS.len().pow(3));
    assert_eq!(run_all(Keeping::Nothing, all_of(3)).await, EVENTS.len().pow(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of a million sequences take half an hour; run it after changing the delivery"]
async fn it_says_the_truth_in_every_sequence_of_four() {
    assert_eq!(run_all(Keeping::File, all_of(4)).await, EVENTS.len().pow(4));
}
