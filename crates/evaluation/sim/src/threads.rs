//! Waiters of simulated threads, and threads that simulated threads create.

use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use doorbell_exchange::asynchronous::{LockObserver, Waiter};
use doorbell_machine::cpu::CpuTime;
use doorbell_study::executor;
use doorbell_study::threads::{OneThread, Threads};
use doorbell_verbs::Channel;

use crate::kernel::Suspension;
use crate::kernel::locks::Lock;
use crate::kernel::watch::{Change, ThreadId, lock};
use crate::provider::SharedWorld;
use crate::time::Ps;

/// Waiter in virtual time.
#[derive(Clone)]
pub struct VirtualWaiter {
    shared: Arc<SharedWorld>,
    sleeps: bool,
}

impl std::fmt::Debug for VirtualWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualWaiter").field("sleeps", &self.sleeps).finish_non_exhaustive()
    }
}

impl VirtualWaiter {
    pub(crate) fn new(shared: &Arc<SharedWorld>, sleeps: bool) -> Self {
        Self { shared: Arc::clone(shared), sleeps }
    }

    /// Returns the clock of the running thread.
    pub fn now(&self) -> Ps {
        lock(&self.shared.world).clock()
    }

    /// Returns whether no packet is in flight between any nodes.
    pub(crate) fn is_network_quiet(&self) -> bool {
        lock(&self.shared.world).is_quiet()
    }

    /// Waits until another thread of the same host has done useful work. The result of this work is in unregistered
    /// memory, so the kernel cannot detect when it changes.
    async fn follow(&self) {
        let mut has_waited = false;
        poll_fn(|_| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            let mut world = lock(&self.shared.world);
            let look = world.testbed.cpu.memory_access;
            world.charge_in_vain(look);
            world.suspend(Suspension { follows: true, ..Suspension::default() });
            Poll::Pending
        })
        .await;
    }
}

impl Waiter for VirtualWaiter {
    async fn wait(&self, channel: Option<&Channel>, deadline_ns: Option<u64>) {
        let mut has_waited = false;
        poll_fn(|_| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            // Asking for the descriptor counts as looking at the channel.
            let sleeps = channel.is_some_and(|channel| {
                channel.as_fd();
                true
            });
            if channel.is_some_and(|channel| channel.wait(Some(std::time::Duration::ZERO)).unwrap_or(false)) {
                return Poll::Ready(());
            }
            let deadline = deadline_ns.map(Ps::from_ns);
            lock(&self.shared.world).suspend(Suspension { deadline, sleeps, follows: false });
            Poll::Pending
        })
        .await;
    }

    fn wants_notification(&self) -> bool {
        self.sleeps
    }

    fn observe_lock(&self) -> Option<Box<dyn LockObserver>> {
        Some(Box::new(SharedConnection { shared: Arc::clone(&self.shared), lock: Lock::default() }))
    }

    async fn breathe(&self) {
        let mut has_yielded = false;
        poll_fn(|context| {
            if has_yielded || lock(&self.shared.world).breathe() {
                return Poll::Ready(());
            }
            has_yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Observer of the lock of a connection that is split into two halves. Threads with separate clocks take this lock.
struct SharedConnection {
    shared: Arc<SharedWorld>,
    lock: Lock,
}

impl std::fmt::Debug for SharedConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedConnection").field("lock", &self.lock).finish_non_exhaustive()
    }
}

impl LockObserver for SharedConnection {
    fn taken(&self) {
        lock(&self.shared.world).hold(&self.lock);
    }

    fn released(&self) {
        lock(&self.shared.world).release(&self.lock);
    }
}

/// Executor of a program's tasks on a node, in virtual time. [`deal`](Threads::deal) and [`beside`](Threads::beside)
/// create threads with separate clocks and processors.
///
/// Only simulated threads can create threads, so a thread that was [spawned](crate::Simulation::spawn) must poll the
/// futures.
#[derive(Clone)]
pub struct VirtualThreads {
    shared: Arc<SharedWorld>,
    node: usize,
}

impl std::fmt::Debug for VirtualThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualThreads").field("node", &self.node).finish_non_exhaustive()
    }
}

impl VirtualThreads {
    pub(crate) fn new(shared: &Arc<SharedWorld>, node: usize) -> Self {
        Self { shared: Arc::clone(shared), node }
    }

    /// Runs tasks on the running thread.
    async fn run_here<T, E>(
        &self,
        waiter: &VirtualWaiter,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        let tasks: Vec<_> = tasks.into_iter().collect();
        let thread = lock(&self.shared.world).set_tasks(tasks.len());
        let results = OneThread(waiter.clone()).run(waiter, tasks, check).await;
        if let Some((thread, before)) = thread {
            lock(&self.shared.world).threads[thread].has_tasks = before;
        }
        results
    }

    /// Creates a thread whose parent is the running thread.
    fn create_child<'a, T>(&self, what: &str, future: impl Future<Output = T> + 'a) -> ChildThread<'a, T> {
        let mut world = lock(&self.shared.world);
        let parent = world.current.map_or("", |parent| world.threads[parent].name.as_str());
        let name = format!("{parent}, {what}");
        let thread = world.add_thread(self.node, name);
        drop(world);
        ChildThread { shared: Arc::clone(&self.shared), thread, future: Some(Box::pin(future)) }
    }
}

/// A thread that another thread has created. The future of the parent contains the future of this thread, and polls it
/// when this thread has its turn.
struct ChildThread<'a, T> {
    shared: Arc<SharedWorld>,
    thread: ThreadId,
    /// Future of the thread; `None` once the thread has ended.
    future: Option<Pin<Box<dyn Future<Output = T> + 'a>>>,
}

impl<T> ChildThread<'_, T> {
    /// Polls the future if the turn belongs to this thread or one of its descendants. Returns the value once the
    /// thread ends; then the parent has a turn.
    fn poll(&mut self, context: &mut Context<'_>) -> Option<T> {
        let future = self.future.as_mut()?;
        {
            let world = lock(&self.shared.world);
            let mut running = world.current;
            while running != Some(self.thread) {
                running = world.threads[running?].parent;
            }
        }
        let Poll::Ready(value) = future.as_mut().poll(context) else { return None };
        self.end();
        Some(value)
    }

    fn end(&mut self) {
        self.future = None;
        let mut world = lock(&self.shared.world);
        world.end_thread(self.thread);
        if let Some(parent) = world.threads[self.thread].parent {
            world.changes.push(Change { thread: parent, turn: Change::ANY_TURN, notifies: true });
        }
    }
}

impl<T> Drop for ChildThread<'_, T> {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.end();
        }
    }
}

impl Threads for VirtualThreads {
    type Waiter = VirtualWaiter;

    /// Returns the CPU time of all threads of the node.
    fn cpu_time(&self) -> CpuTime {
        let (all, empty) = lock(&self.shared.world).cpu_time(self.node);
        CpuTime { all_ns: Some(all.as_ns()), empty_ns: Some(empty.as_ns()) }
    }

    fn waiter(&self, channel: Option<Channel>) -> VirtualWaiter {
        VirtualWaiter::new(&self.shared, channel.is_some())
    }

    async fn run<T, E>(
        &self,
        waiter: &VirtualWaiter,
        tasks: impl IntoIterator<Item = impl Future<Output = T>>,
        check: impl FnMut() -> Result<(), E>,
    ) -> Result<Vec<T>, E> {
        self.run_here(waiter, tasks, check).await
    }

    async fn deal<I: Send, T: Send, E: Send, F: Future<Output = T>, C: FnMut() -> Result<(), E>>(
        &self,
        threads: usize,
        items: Vec<I>,
        task: impl Fn(I, VirtualWaiter) -> F + Sync,
        check: impl Fn() -> C + Sync,
    ) -> Result<Vec<T>, E> {
        let (task, check) = (&task, &check);
        let mut children = Vec::new();
        for (number, hand) in executor::hands(threads, items).into_iter().enumerate() {
            let waiter = self.waiter(None);
            let played = async move {
                let tasks = hand.into_iter().map(|item| task(item, waiter.clone()));
                self.run_here(&waiter, tasks, check()).await
            };
            children.push(self.create_child(&format!("thread {number}"), played));
        }
        let mut results: Vec<Option<Result<Vec<T>, E>>> = children.iter().map(|_| None).collect();
        poll_fn(|context| {
            for (thread, result) in children.iter_mut().zip(&mut results) {
                if let Some(value) = thread.poll(context) {
                    *result = Some(value);
                }
            }
            // The parent continues in its own turn, once all its child threads have ended.
            let is_own =
                lock(&self.shared.world).current.is_none_or(|running| children.iter().all(|it| it.thread != running));
            if is_own && results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        executor::gather(results.into_iter().flatten())
    }

    async fn beside<T, E: Send>(
        &self,
        mut again: impl FnMut() -> Result<usize, E> + Send,
        body: impl Future<Output = T>,
    ) -> Result<T, E> {
        let waiter = self.waiter(None);
        let over_and_over = async {
            loop {
                match again() {
                    Ok(0) => waiter.follow().await,
                    Ok(_) => waiter.breathe().await,
                    Err(error) => return error,
                }
            }
        };
        let mut helper = self.create_child("beside", over_and_over);
        let (mut body, mut failed) = (pin!(body), None);
        let value = poll_fn(|context: &mut Context<'_>| {
            if lock(&self.shared.world).current == Some(helper.thread) {
                failed = failed.take().or(helper.poll(context));
                return Poll::Pending;
            }
            body.as_mut().poll(context)
        })
        .await;
        drop(helper);
        failed.map_or(Ok(value), Err)
    }
}
