//! Executor that polls a few tasks in one thread, without wake-ups.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_verbs::Channel;

use crate::yield_policy::YieldPolicy;
use doorbell_machine::cpu::EmptyRounds;

/// Maximum time that the executor sleeps on a channel. Connections must be polled from time to time.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Way in which the tasks of one thread wait: they spin, or they sleep together on one completion channel.
#[derive(Clone, Debug)]
pub struct Idle {
    channel: Option<Channel>,
    waiting: Rc<Cell<usize>>,
    /// Whether a task has handled a message in this round, even if that task now waits for the next message.
    has_handled: Rc<Cell<bool>>,
    empty: Rc<RefCell<EmptyRounds>>,
    /// Earliest deadline of the waiting tasks, on the device's clock.
    deadline_ns: Rc<Cell<u64>>,
}

impl Idle {
    /// Creates a waiter with which tasks spin.
    pub fn spin() -> Self {
        let deadline_ns = Rc::new(Cell::new(u64::MAX));
        Self { channel: None, waiting: Rc::default(), has_handled: Rc::default(), empty: Rc::default(), deadline_ns }
    }

    /// Creates a waiter with which the thread sleeps on `channel` when all tasks wait.
    pub(crate) fn sleep_on(channel: Channel) -> Self {
        Self { channel: Some(channel), ..Self::spin() }
    }

    /// Returns the CPU time of the rounds in which no task found anything, in nanoseconds.
    pub(crate) fn empty_ns(&self) -> u64 {
        self.empty.borrow().ns()
    }
}

/// Guard that counts a task as waiting until the guard is dropped.
struct WaitingTask<'a>(&'a Cell<usize>);

impl<'a> WaitingTask<'a> {
    fn new(waiting: &'a Cell<usize>) -> Self {
        waiting.set(waiting.get() + 1);
        Self(waiting)
    }
}

impl Drop for WaitingTask<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Waiter for Idle {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        // If the thread can sleep, do not count a task without a channel as waiting. Such a task gets no notification,
        // so the thread must not sleep.
        let _waits = (channel.is_some() || self.channel.is_none()).then(|| WaitingTask::new(&self.waiting));
        self.deadline_ns.set(deadline_ns.unwrap_or(u64::MAX).min(self.deadline_ns.get()));
        yield_now().await;
    }

    fn wants_notification(&self) -> bool {
        self.channel.is_some()
    }

    fn breathe(&self) -> impl Future<Output = ()> {
        self.has_handled.set(true);
        ready(())
    }
}

/// Runs one task until it is done.
pub fn block_on<T>(task: impl Future<Output = T>) -> T {
    let mut results = run(&Idle::spin(), [task]);
    results.pop().unwrap_or_else(|| unreachable!("a task that is done has a result"))
}

/// Runs tasks until all are done. Returns their results in the order of tasks.
pub fn run<T>(idle: &Idle, tasks: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let Ok(results) = run_while(idle, tasks, || Ok::<(), Infallible>(()));
    results
}

/// Runs tasks until all are done, or until `check` fails. The function calls `check` in each round of polling. If
/// `check` fails, all tasks are dropped.
///
/// # Errors
///
/// The error of `check`.
pub fn run_while<T, E>(
    idle: &Idle,
    tasks: impl IntoIterator<Item = impl Future<Output = T>>,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<Vec<T>, E> {
    let mut tasks: Vec<Pin<Box<_>>> = tasks.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut policy = YieldPolicy::default();
    loop {
        let left = round(&mut tasks, &mut results, &mut context);
        if left == 0 {
            break;
        }
        check()?;
        let has_handled = idle.has_handled.take();
        let all_wait = idle.waiting.get() == left;
        if has_handled || !all_wait {
            policy.found();
            idle.empty.borrow_mut().busy();
        } else {
            idle.empty.borrow_mut().empty();
        }
        if !all_wait {
            continue;
        }
        let Some(channel) = &idle.channel else {
            if !has_handled {
                policy.found_nothing();
            }
            continue;
        };
        // All tasks have armed their notifications and found nothing since then. Ignore errors of `wait`, since the
        // tasks poll afterwards in any case.
        let longest = LONGEST_SLEEP.min(channel.device().time_until(idle.deadline_ns.replace(u64::MAX)));
        let _ = channel.wait(Some(longest));
    }
    Ok(results.into_iter().flatten().collect())
}

/// Polls each task that has no result yet. Returns the number of tasks that still have no result.
pub(crate) fn round<T, F: Future<Output = T>>(
    tasks: &mut [Pin<Box<F>>],
    results: &mut [Option<T>],
    context: &mut Context<'_>,
) -> usize {
    let mut left = 0;
    for (task, result) in tasks.iter_mut().zip(results) {
        if result.is_none() {
            match task.as_mut().poll(context) {
                Poll::Ready(value) => *result = Some(value),
                Poll::Pending => left += 1,
            }
        }
    }
    left
}

/// Distributes `items` in turn over `count` lists.
pub fn hands<I>(count: usize, items: Vec<I>) -> Vec<Vec<I>> {
    let mut hands: Vec<Vec<I>> = (0..count.max(1)).map(|_| Vec::new()).collect();
    let count = hands.len();
    items.into_iter().enumerate().for_each(|(index, item)| hands[index % count].push(item));
    hands
}

/// Concatenates the results of all lists in order, or returns the first error.
///
/// # Errors
///
/// One of `hands` is an error.
pub fn gather<T, E>(hands: impl IntoIterator<Item = Result<Vec<T>, E>>) -> Result<Vec<T>, E> {
    let hands: Result<Vec<_>, E> = hands.into_iter().collect();
    Ok(hands?.into_iter().flatten().collect())
}

/// Distributes `ends` over `threads` threads. Each thread calls `run` with its ends. Returns the results of all
/// threads.
pub(crate) fn deal<E: Send, T: Send>(threads: usize, ends: Vec<E>, run: impl Fn(Vec<E>) -> Vec<T> + Sync) -> Vec<T> {
    let mut hands = hands(threads, ends);
    std::thread::scope(|scope| {
        let own = hands.pop().unwrap_or_default();
        let others: Vec<_> = hands.into_iter().map(|hand| scope.spawn(|| run(hand))).collect();
        let own = run(own);
        let others = others.into_iter().flat_map(|thread| match thread.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        others.chain(own).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_gets_a_share_of_the_ends() {
        let mut results = deal(3, (0..7).collect(), |hand: Vec<u32>| {
            let size = hand.len();
            hand.into_iter().map(|end| (end, size)).collect()
        });
        results.sort_unstable();
        assert_eq!(results, [(0, 3), (1, 2), (2, 2), (3, 3), (4, 2), (5, 2), (6, 3)]);
    }

    #[test]
    fn tasks_that_never_end_are_dropped_when_the_check_fails() {
        let held = Rc::new(());
        let task = |held: Rc<()>| async move {
            loop {
                Idle::spin().wait(None, None).await;
                assert_eq!(Rc::strong_count(&held), 3);
            }
        };
        let mut rounds = 0;
        let check = || {
            rounds += 1;
            if rounds == 5 { Err(rounds) } else { Ok(()) }
        };
        let ended: Result<Vec<()>, u32> = run_while(&Idle::spin(), [task(held.clone()), task(held.clone())], check);
        assert_eq!((ended, Rc::strong_count(&held)), (Err(5), 1));
    }

    /// The responder of a ping-pong waits at the end of each turn, even after a turn in which it has answered.
    #[test]
    fn rounds_that_handle_a_message_are_not_empty() {
        let idle = Idle::spin();
        let task = async {
            for turn in 0..100 {
                idle.wait(None, None).await;
                if turn % 4 == 0 {
                    idle.breathe().await;
                }
            }
        };
        run(&idle, [task]);
        assert_eq!(idle.empty.borrow().count(), 75);
    }

    #[test]
    fn tasks_take_turns_and_results_keep_their_order() {
        let log = std::cell::RefCell::new(Vec::new());
        let log = &log;
        let task = |name: u32, turns: u32| async move {
            for _ in 0..turns {
                log.borrow_mut().push(name);
                yield_now().await;
            }
            name
        };
        assert_eq!(run(&Idle::spin(), [task(1, 1), task(2, 3), task(3, 2)]), [1, 2, 3]);
        assert_eq!(*log.borrow(), [1, 2, 3, 2, 3, 2]);
    }
}
