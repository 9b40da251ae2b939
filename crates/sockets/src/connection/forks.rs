//! Forks: who holds what afterwards.
//!
//! Invariant: counts grow before the fork, so no child runs uncounted, and only the holder itself
//! takes itself out: a count may be too high, never too low. What a fork counted is known to the
//! thread that forks, not to the connection, for threads fork at the same time. The child finds
//! every lock of a connection free. A connection that was on its way into shared memory when the
//! fork happened stays with the kernel in the child, and in the parent until the child has let it
//! go.

use super::{Connection, Registration, Stage};
use crate::context::Context;
use crate::ledger::Ledger;
use crate::node::{Held, Meeting, Node};
use crate::types::{Bypass, Close};
use std::sync::atomic::Ordering;
use vmmc_host::Region;
use vmmc_stream::Section;
use vmmc_stream::messages::EndRef;

/// What one fork has counted, and holds until it is over.
#[derive(Debug)]
pub struct Forking<'a> {
    counted: Vec<Counted<'a>>,
    _ledger: Option<Section<'a, Option<Region>>>,
    /// Let go last: what is said then may be an answer to what waits for the locks above.
    node: Option<Held<'a>>,
}

#[derive(Debug)]
struct Counted<'a> {
    connection: &'a Connection,
    by: By,
    _watches: Option<Section<'a, Vec<Registration>>>,
    _matched: Option<Section<'a, Option<Meeting>>>,
}

/// Where a process more was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// Among the holders of the end.
    Holders,
    /// In the ledger, or nowhere when memory is short.
    Ledger,
}

impl<'a> Forking<'a> {
    /// Takes the locks in the order in which an answer of the node takes them.
    pub(crate) fn count(node: &'a Node, ledger: &'a Ledger, open: impl Iterator<Item = &'a Connection>) -> Forking<'a> {
        let node = node.hold_still();
        let counted = open.filter_map(|connection| {
            let by = connection.count_for_child(ledger)?;
            let (watches, matched) = (connection.watches.lock(), connection.matched.lock());
            Some(Counted { connection, by, _watches: watches, _matched: matched })
        });
        Forking { counted: counted.collect(), _ledger: ledger.hold(), node }
    }

    /// In the child: the counts are this process's own from now on. Gives the ends of upgraded
    /// connections.
    pub(crate) fn inherit(mut self, context: &Context) -> Vec<EndRef> {
        let all: Vec<(&Connection, By)> = self.counted.iter().map(|one| (one.connection, one.by)).collect();
        if let Some(node) = self.node.take() {
            node.release_unsent();
        }
        drop(self);
        all.iter().for_each(|(connection, _)| {
            connection.watches.keep_in_child();
            connection.matched.keep_in_child();
        });
        all.iter().for_each(|(connection, by)| connection.inherit(context, *by));
        all.iter().filter_map(|(connection, _)| connection.end()).collect()
    }
}

impl Connection {
    /// Counts the child that is about to be made; none: there is nothing to count.
    fn count_for_child(&self, ledger: &Ledger) -> Option<By> {
        if self.stage() == Stage::Closed {
            return None;
        }
        if let Some(joined) = self.upgraded.get() {
            joined.core.own().holders.fetch_add(1, Ordering::SeqCst);
            return Some(By::Holders);
        }
        match self.entry.get() {
            Some(entry) => entry.add(),
            None => match ledger.entry() {
                Some(entry) => {
                    entry.add();
                    let _ = self.entry.set(entry);
                }
                None => self.settle_with(Bypass::Shared),
            },
        }
        Some(By::Ledger)
    }

    fn inherit(&self, context: &Context, by: By) {
        self.generation.store(context.generation(), Ordering::Relaxed);
        // What the parent closed is the parent's to give back.
        self.unreleased.store(false, Ordering::Relaxed);
        match self.stage() {
            // The parent's offer is its own affair; ours begins anew, when the parent has let go.
            Stage::Offered => self.stage.store(Stage::Young as u8, Ordering::Release),
            Stage::Matched => self.settle_with(Bypass::Shared),
            // Another thread closed it while the fork was under way: we were counted, and have
            // nothing.
            Stage::Closed => self.count_out(context, by),
            // It joined after it was counted as plain: it is the parent's alone.
            Stage::Joined if by == By::Ledger => {
                self.stage.store(Stage::Closed as u8, Ordering::Release);
                self.count_out(context, by);
            }
            _ => {}
        }
        // Threads that were in the kernel are not in this process.
        self.early.sends.store(0, Ordering::SeqCst);
        self.early.receives.store(0, Ordering::SeqCst);
    }

    fn count_out(&self, context: &Context, by: By) {
        match (by, self.upgraded.get(), self.entry.get()) {
            (By::Holders, Some(joined), _) => {
                let (_, wakeup) = joined.core.let_go(Close::Orderly);
                self.wake_other_end(context, joined, wakeup);
            }
            (By::Ledger, _, Some(entry)) => entry.remove(),
            _ => {}
        }
    }

    /// Its end, if it is upgraded and open.
    fn end(&self) -> Option<EndRef> {
        self.upgraded.get().filter(|_| self.stage() == Stage::Joined).map(|joined| joined.seat.end)
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::context::Settings;
    use crate::node::Seat;
    use crate::types::Close;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use vmmc_stream::messages::Place;
    use vmmc_stream::{Shape, Slab};

    /// A context without a node, and an upgraded connection of it.
    fn upgraded() -> (Context, Arc<Connection>) {
        let context = Context::new(Settings { node_name: "none-of-this-name".into(), ..Settings::from_env() });
        let slot = Slab::create(Shape { slots: 1, small_bytes: 4096, large_bytes: 4096 }).unwrap().slot(0).unwrap();
        slot.words().ends[0].holders.store(1, Ordering::SeqCst);
        let connection = Connection::new(0);
        let seat =
            Seat { end: EndRef { place: Place { slab: 1, slot: 0, end: 0 }, secret: 0 }, session: Default::default() };
        connection.join(&context, std::io::stdin().as_fd(), Meeting { seat, slot, peer: None });
        (context, connection)
    }

    fn holders(connection: &Connection) -> u32 {
        connection.upgraded.get().unwrap().core.own().holders.load(Ordering::SeqCst)
    }

    #[test]
    fn two_threads_that_fork_at_once_make_two_children_that_both_let_go() {
        let (context, connection) = upgraded();
        let first = context.before_fork(std::iter::once(&*connection));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let second = context.before_fork(std::iter::once(&*connection));
                context.after_fork_child(second);
            });
            std::thread::sleep(std::time::Duration::from_millis(2));
            // The second one waits for the first to be over in the parent.
            context.after_fork_parent(first);
        });
        assert_eq!(holders(&connection), 3);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        connection.close(&context, socket.as_fd(), Close::Orderly);
        assert_eq!(holders(&connection), 2, "the second child let go of what was counted for it");
    }

    #[test]
    fn the_child_of_a_fork_finds_the_locks_of_its_connections_free() {
        let (context, connection) = upgraded();
        let forking = context.before_fork(std::iter::once(&*connection));
        assert!(connection.watches.try_lock().is_none() && connection.matched.try_lock().is_none());
        context.after_fork_child(forking);
        assert!(connection.watches.try_lock().is_some() && connection.matched.try_lock().is_some());
    }

    #[test]
    fn a_child_of_many_forks_in_a_chain_is_a_client_of_its_own() {
        let (context, _) = upgraded();
        for depth in 0..200 {
            let of_parent = context.node().clone();
            let forking = context.before_fork(std::iter::empty());
            context.after_fork_child(forking);
            assert!(!Arc::ptr_eq(&of_parent, context.node()), "the child at depth {depth} talks in its parent's name");
        }
    }

    #[test]
    fn the_child_of_a_fork_leaves_the_bells_of_its_parent_alone() {
        let (context, connection) = upgraded();
        let of_parent = context.node().clone();
        let [asleep, other] = [context.ready_set().unwrap(), context.ready_set().unwrap()];
        let bells = of_parent.bells().unwrap();
        (0..2).for_each(|bell| _ = bells.mark_always(bell, 7));
        asleep.take(&mut |_| {});
        assert!(!asleep.arm());
        let forking = context.before_fork(std::iter::empty());
        context.after_fork_child(forking);
        // What a wait in the child does with a set that it got, and what becomes of it.
        assert!(!asleep.any() && !other.any() && !other.arm() && !asleep.is_deaf());
        other.take(&mut |token| panic!("took {token} from the parent"));
        assert!(asleep.add(&connection, 3, crate::types::Interest::READ).is_err());
        asleep.disarm();
        drop(asleep);
        // As the parent sees its memory.
        assert!(bells.any(1), "a token of the parent's");
        assert!(bells.mark_always(0, 8), "the parent's loop sleeps, and is rung");
    }

    #[test]
    fn a_connection_that_closes_while_a_fork_is_under_way_ends_when_the_child_has_counted_itself_out() {
        let (context, connection) = upgraded();
        let forking = context.before_fork(std::iter::once(&*connection));
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        connection.close(&context, socket.as_fd(), Close::Orderly);
        assert_eq!(holders(&connection), 1);
        context.after_fork_child(forking);
        assert_eq!(holders(&connection), 0);
    }

    #[test]
    fn a_program_that_could_not_be_started_leaves_its_connections_held() {
        let (context, connection) = upgraded();
        connection.passed();
        assert!(connection.leave_at_exec(&context));
        assert_eq!(holders(&connection), 1);
        connection.back_from_exec();
        assert_eq!(holders(&connection), 2);
        let forking = context.before_fork(std::iter::empty());
        context.after_fork_child(forking);
        assert!(!connection.leave_at_exec(&context), "what was not counted for a child is not its to leave");
    }
}
