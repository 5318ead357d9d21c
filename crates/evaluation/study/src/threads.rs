//! Threads that run the tasks of one end.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use doorbell_exchange::asynchronous::{Waiter, yield_now};
use doorbell_sync::IgnorePoison;
use doorbell_verbs::Channel;

use crate::executor::{self, Idle};
use doorbell_machine::cpu::{self, CpuTime};
use doorbell_machine::pinning::{self, PinError, Pinned};

/// Runtime of the tasks of one end.
///
/// [`OsThreads`] uses threads of the operating system and real time. [`OneThread`] runs all tasks on the thread that
/// polls them. A simulation may implement the trait with a virtual clock for each thread.
///
/// Methods with a parameter `check` call `check` in each round in which they poll a thread's tasks. If `check` fails,
/// the tasks are dropped, and the method returns the error of `check`.
pub trait Threads {
    /// Waiter that the tasks use.
    type Waiter: Waiter + Clone;

    /// Returns the CPU time that the threads of this end have used so far, if the implementation knows it.
    fn cpu_time(&self) -> CpuTime {
        CpuTime::default()
    }

    /// Pins the calling thread to the first of these CPUs until the result is dropped. Threads that
    /// [`deal`](Self::deal) and [`beside`](Self::beside) start until then are pinned to the other CPUs. If `cpus` is
    /// empty, or the implementation has no threads of the operating system, no thread is pinned.
    ///
    /// # Errors
    ///
    /// The operating system rejects one of the CPUs.
    fn pin(&self, _cpus: &[usize]) -> Result<Pinned, PinError> {
        Ok(Pinned::default())
    }

    /// Returns a waiter for tasks of the calling thread. `channel` is the channel of their connections, or `None` if
    /// the tasks spin.
    fn waiter(&self, channel: Option<Channel>) -> Self::Waiter;

    /// Runs tasks on the calling thread until all are done. The tasks use `waiter`. Returns their results in the order
    /// of tasks.
    ///
    /// # Errors
    ///
    /// `check` fails. All tasks are dropped.
    fn run<T, E>(
        &self,
        waiter: &Self::Waiter,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        check: impl FnMut() -> Result<(), E>,
    ) -> impl Future<Output = Result<Vec<T>, E>>;

    /// Distributes `items` over `threads` threads. Each thread runs one task per item. Returns the results in the order
    /// of threads.
    ///
    /// # Errors
    ///
    /// `check` fails in a thread. The tasks of that thread are dropped. If several threads fail, the error is that of
    /// the first of these threads.
    fn deal<I: Send, T: Send, E: Send, F: Future<Output = T>, C: FnMut() -> Result<(), E>>(
        &self,
        threads: usize,
        items: Vec<I>,
        task: impl Fn(I, Self::Waiter) -> F + Sync,
        check: impl Fn() -> C + Sync,
    ) -> impl Future<Output = Result<Vec<T>, E>>;

    /// Runs `body` while a separate thread calls `again` repeatedly. `again` returns the amount of work that it has
    /// done. If the amount is 0, the thread yields.
    ///
    /// # Errors
    ///
    /// `again` failed. The error is returned once `body` is done.
    fn beside<T, E: Send>(
        &self,
        again: impl FnMut() -> Result<usize, E> + Send,
        body: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, E>>;
}

/// Threads of the operating system that poll. All futures of this type block the thread that polls them until they are
/// done.
///
/// The CPU time is that of the whole process. If both ends are in one process, each end reports the CPU time of both
/// ends together.
#[derive(Clone, Debug, Default)]
pub struct OsThreads {
    empty_ns: Arc<AtomicU64>,
    /// CPUs of the last call of [`Threads::pin`].
    cpus: Arc<Mutex<Vec<usize>>>,
}

impl OsThreads {
    /// Pins the calling thread to the CPU at index `number`. [`Threads::pin`] has checked all CPUs.
    fn pin_to(&self, number: usize) -> Pinned {
        Pinned::to_one_of(&self.cpus.lock().ignore_poison(), number)
    }

    fn run_here<T, E>(
        &self,
        idle: &Idle,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        let before_ns = idle.empty_ns();
        let result = executor::run_while(idle, tasks, check);
        self.empty_ns.fetch_add(idle.empty_ns().saturating_sub(before_ns), Ordering::Relaxed);
        result
    }
}

impl Threads for OsThreads {
    type Waiter = Idle;

    fn cpu_time(&self) -> CpuTime {
        CpuTime { all_ns: cpu::of_process(), empty_ns: Some(self.empty_ns.load(Ordering::Relaxed)) }
    }

    fn pin(&self, cpus: &[usize]) -> Result<Pinned, PinError> {
        pinning::try_all(cpus.get(1..).unwrap_or_default())?;
        let pinned = cpus.first().map(|&cpu| Pinned::to(cpu)).transpose()?.unwrap_or_default();
        *self.cpus.lock().ignore_poison() = cpus.to_vec();
        Ok(pinned)
    }

    fn waiter(&self, channel: Option<Channel>) -> Idle {
        channel.map_or_else(Idle::spin, Idle::sleep_on)
    }

    async fn run<T, E>(
        &self,
        waiter: &Idle,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        self.run_here(waiter, tasks, check)
    }

    async fn deal<I: Send, T: Send, E: Send, F: Future<Output = T>, C: FnMut() -> Result<(), E>>(
        &self,
        threads: usize,
        items: Vec<I>,
        task: impl Fn(I, Idle) -> F + Sync,
        check: impl Fn() -> C + Sync,
    ) -> Result<Vec<T>, E> {
        let next = AtomicUsize::new(0);
        executor::gather(executor::deal(threads, items, |hand| {
            let _pinned = self.pin_to(next.fetch_add(1, Ordering::Relaxed));
            let idle = Idle::spin();
            let tasks = hand.into_iter().map(|item| task(item, idle.clone()));
            vec![self.run_here(&idle, tasks, check())]
        }))
    }

    async fn beside<T, E: Send>(
        &self,
        mut again: impl FnMut() -> Result<usize, E> + Send,
        body: impl Future<Output = T>,
    ) -> Result<T, E> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Take the last CPU. The CPUs before it are for the threads that serve the connections.
                let cpus = self.cpus.lock().ignore_poison().len();
                let _pinned = self.pin_to(cpus.saturating_sub(1));
                let mut result = Ok(0);
                while !is_over.load(Ordering::Relaxed) && result.is_ok() {
                    result = again();
                    if matches!(result, Ok(0)) {
                        std::thread::yield_now();
                    }
                }
                result
            });
            let value = executor::block_on(body);
            is_over.store(true, Ordering::Relaxed);
            match thread.join() {
                Ok(result) => result.map(|_| value),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// The polling thread alone. All tasks take turns on this thread, even tasks of other ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneThread<W>(
    /// Waiter that the tasks use.
    pub W,
);

impl<W: Waiter + Clone> Threads for OneThread<W> {
    type Waiter = W;

    fn waiter(&self, _: Option<Channel>) -> W {
        self.0.clone()
    }

    async fn run<T, E>(
        &self,
        _: &W,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        let mut tasks: Vec<Pin<Box<_>>> = tasks.into_iter().map(Box::pin).collect();
        let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
        poll_fn(|context| {
            if executor::round(&mut tasks, &mut results, context) == 0 {
                return Poll::Ready(Ok(()));
            }
            match check() {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            }
        })
        .await?;
        Ok(results.into_iter().flatten().collect())
    }

    async fn deal<I: Send, T: Send, E: Send, F: Future<Output = T>, C: FnMut() -> Result<(), E>>(
        &self,
        _: usize,
        items: Vec<I>,
        task: impl Fn(I, W) -> F + Sync,
        check: impl Fn() -> C + Sync,
    ) -> Result<Vec<T>, E> {
        let tasks: Vec<F> = items.into_iter().map(|item| task(item, self.0.clone())).collect();
        self.run(&self.0, tasks, check()).await
    }

    async fn beside<T, E: Send>(
        &self,
        mut again: impl FnMut() -> Result<usize, E> + Send,
        body: impl Future<Output = T>,
    ) -> Result<T, E> {
        let over_and_over = async {
            loop {
                match again() {
                    Ok(0) => self.0.wait(None, None).await,
                    Ok(_) => yield_now().await,
                    Err(error) => return error,
                }
            }
        };
        let (mut body, mut over_and_over) = (pin!(body), pin!(over_and_over));
        let mut failed = None;
        let value = poll_fn(|context: &mut Context<'_>| {
            if failed.is_none()
                && let Poll::Ready(error) = over_and_over.as_mut().poll(context)
            {
                failed = Some(error);
            }
            body.as_mut().poll(context)
        })
        .await;
        failed.map_or(Ok(value), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use doorbell_exchange::asynchronous::Spin;

    use super::*;

    /// Checks the behaviour that every implementation of [`Threads`] must have.
    fn conforms(threads: &impl Threads) {
        executor::block_on(async {
            let waiter = threads.waiter(None);
            let task = |turns: u32, waiter| async move {
                for _ in 0..turns {
                    Waiter::wait(&waiter, None, None).await;
                }
                turns
            };
            let tasks = [3, 1, 2].map(|turns| task(turns, waiter.clone()));
            assert_eq!(threads.run(&waiter, tasks, || Ok::<_, ()>(())).await, Ok(vec![3, 1, 2]));
            let mut done = threads.deal(2, vec![3, 1, 2, 5], task, || || Ok::<_, ()>(())).await.unwrap();
            done.sort_unstable();
            assert_eq!(done, [1, 2, 3, 5]);

            // A failing check ends tasks that would never end.
            let rounds = Cell::new(0);
            let failing = || {
                rounds.set(rounds.get() + 1);
                if rounds.get() == 5 { Err("gone") } else { Ok(()) }
            };
            assert_eq!(threads.run(&waiter, [task(u32::MAX, waiter.clone())], failing).await, Err("gone"));
            assert_eq!(threads.deal(2, vec![u32::MAX; 3], task, || || Err("gone")).await, Err("gone"));

            // The separate thread runs until the body is done.
            let calls = AtomicUsize::new(0);
            let count = || Ok::<_, ()>(calls.fetch_add(1, Ordering::Relaxed) % 2);
            let body = async {
                while calls.load(Ordering::Relaxed) < 10 {
                    yield_now().await;
                }
                "done"
            };
            assert_eq!(threads.beside(count, body).await, Ok("done"));
            calls.store(0, Ordering::Relaxed);
            let fail = || {
                calls.fetch_add(1, Ordering::Relaxed);
                Err("no queue")
            };
            let body = async {
                while calls.load(Ordering::Relaxed) == 0 {
                    yield_now().await;
                }
            };
            assert_eq!(threads.beside(fail, body).await, Err("no queue"));
        });
    }

    #[test]
    fn threads_of_the_operating_system_conform() {
        conforms(&OsThreads::default());
    }

    /// Checks the CPU to which each thread of `deal` and the thread of `beside` is pinned.
    #[test]
    fn threads_run_on_the_cpus_that_they_are_pinned_to() {
        let own = || {
            let allowed = doorbell_machine::Root::default().text("proc/thread-self/status").unwrap();
            let list = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
            doorbell_machine::cpu_list(list)
        };
        let before = own();
        // On a machine with one CPU, both entries are that CPU.
        let cpus = [before[0], before[before.len() - 1]];
        let threads = OsThreads::default();
        let pinned = threads.pin(&cpus).unwrap();
        assert_eq!(own(), [cpus[0]]);
        executor::block_on(async {
            let task = |(), _| async move { own() };
            let mut dealt = threads.deal(2, vec![(), ()], task, || || Ok::<_, ()>(())).await.unwrap();
            dealt.sort_unstable();
            assert_eq!(dealt, [vec![cpus[0]], vec![cpus[1]]]);
            let seen = Mutex::new(Vec::new());
            let look = || {
                *seen.lock().unwrap() = own();
                Ok::<_, ()>(0)
            };
            let until_seen = async {
                while seen.lock().unwrap().is_empty() {
                    yield_now().await;
                }
            };
            threads.beside(look, until_seen).await.unwrap();
            assert_eq!(*seen.lock().unwrap(), [cpus[1]]);
        });
        assert_eq!(own(), [cpus[0]]);
        drop(pinned);
        assert_eq!(own(), before);
        let _free = threads.pin(&[]).unwrap();
        assert_eq!(own(), before);
        assert!(threads.pin(&[cpus[0], usize::MAX]).is_err());
        assert_eq!(own(), before, "a rejected list pins nothing");
    }

    #[test]
    fn tasks_of_one_thread_conform() {
        conforms(&OneThread(Spin));
    }
}
