//! The claim protocol of one-transaction handlers, for one key.
//!
//! A state is the committed row, the sessions of Postgres with what is on the wire to and from them, and the requests in
//! the processes. What Postgres does at once is one step; a string of several commands is several. (The look-up, a message
//! of its own, travels with BEGIN here: the process does nothing between them that anyone could see.) Within the bound a
//! request may come in at any time at any process, whatever became of the ones before it: so retries, duplicates and
//! requests that arrive long after their client has hung up are all there, and no answer has to be modelled as lost.
//!
//! A handler's helper may leave the transaction: commit it, or roll it back and commit one of its own; and a statement of the handler
//! may fail, after which the transaction answers nothing before its rollback. Each ending asks for the claim's mark, which is gone
//! with its transaction, and for the witness, which stays if the transaction was committed and not by us. An escape is final for its key:
//! it is stored in a transaction of its own. Between the helper's commit and that, nothing protects the key: a process that dies there, or
//! a request that comes in there, may repeat the effect. Such states are called exposed, and nothing else is.
//!
//! A request whose key its process remembers as completed reads the row in one statement, without a transaction; in the
//! model any process may remember any key.
//!
//! Left out: fingerprints (every request is the same one), waiting for a duplicate's end (it asks again, as a retry does).

mod postgres;
mod server;

use stateright::{Checker, HasDiscoveries, Model, Property};

use postgres::{Row, Session};
use server::{Answer, Phase, Purpose, Request};

/// The protocol, and what of it can be broken.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    snapshot: Snapshot,
    /// Whether the advisory lock locks. On CockroachDB it does not.
    lock: bool,
    /// Whether the primary key judges at the insert.
    primary_key: bool,
    /// Whether the effects and the outcome are one commit.
    one_commit: bool,
    /// Whether a request whose commit was not acknowledged looks the outcome up, or takes it for committed.
    looks_up_lost_commits: bool,
    /// Whether an outcome deletes the expired row in its place.
    replaces_expired: bool,
    /// Whether Postgres ends a transaction that sits idle.
    idle_timeout: bool,
    /// Whether every ending asks for the claim's mark.
    mark: bool,
    /// Whether an ending that cannot ask for the mark, because a statement has failed, asks for the witness.
    witness: bool,
    /// Whether an escape is stored.
    stores_escapes: bool,
    /// Whether a process drops a request's entry in its registry when the request ends.
    leaves_registry: bool,
}

/// When the snapshot of the look-up is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Snapshot {
    /// READ COMMITTED, in a statement after the lock.
    AfterLock,
    /// REPEATABLE READ and SERIALIZABLE; or READ COMMITTED, if one statement took the lock and looked up.
    BeforeLock,
}

const PROTOCOL: Protocol = Protocol {
    snapshot: Snapshot::AfterLock,
    lock: true,
    primary_key: true,
    one_commit: true,
    looks_up_lost_commits: true,
    replaces_expired: true,
    idle_timeout: true,
    leaves_registry: true,
    mark: true,
    witness: true,
    stores_escapes: true,
};

/// How far the check goes.
#[derive(Clone, Copy, Debug)]
struct Bound {
    requests: u8,
    processes: u8,
    /// Crashes of a process, cuts of a connection, idle time-outs, restarts of Postgres, stalls beyond the lease: in all.
    faults: u8,
    /// How often the row's retention runs out.
    expiries: u8,
    /// How often a handler's helper leaves the transaction, or a statement of it fails.
    escapes: u8,
}

struct Claim {
    protocol: Protocol,
    bound: Bound,
}

/// What a request made of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome {
    /// The request that made it.
    by: u8,
    /// Whether it is a refusal: the handler's writes are rolled back.
    refused: bool,
    /// Whether it says that the effects are not known.
    unknown: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    row: Option<Row>,
    /// What was ever committed into the row's place, with the retention it belongs to.
    outcomes: Vec<Row>,
    /// Whose writes were committed, and in which retention.
    effects: Vec<(u8, u8)>,
    sessions: Vec<Session>,
    requests: Vec<Request>,
    /// By process: the request that its registry holds.
    registries: Vec<Option<u8>>,
    faults: u8,
    /// Also the number of the current retention.
    expiries: u8,
    escapes: u8,
    /// The request whose helper has committed, until that is stored.
    escaped: Option<u8>,
    /// Nothing protected the key when a process died or another request came by.
    exposed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    // The clients.
    Arrive { process: u8 },
    Recall { process: u8 },
    // The processes.
    Enter { request: u8 },
    AnswerFromRegistry { request: u8 },
    PassOverdueEntry { request: u8 },
    Finish { request: u8, verdict: Verdict },
    Leave { request: u8, way: Way },
    Receive { session: usize },
    NoticeLoss { request: u8 },
    GiveUpLookingUp { request: u8 },
    // Postgres.
    Execute { session: usize },
    EndDisconnected { session: usize },
    Sweep,
    // Time and misfortune.
    Expire,
    IdleTimeout { session: usize },
    Cut { session: usize },
    Crash { process: u8 },
    Restart,
}

/// What a handler does to its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    /// `COMMIT; BEGIN`
    Commit,
    /// `ROLLBACK; BEGIN`, a write, `COMMIT; BEGIN`
    RollBack,
    /// A statement fails.
    Fail,
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Commit,
    Refuse,
    Release,
}

impl Action {
    fn is_fault(self) -> bool {
        matches!(
            self,
            Self::IdleTimeout { .. }
                | Self::Cut { .. }
                | Self::Crash { .. }
                | Self::Restart
                | Self::PassOverdueEntry { .. }
        )
    }
}

impl Model for Claim {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: None,
            outcomes: Vec::new(),
            effects: Vec::new(),
            sessions: Vec::new(),
            requests: Vec::new(),
            registries: vec![None; self.bound.processes.into()],
            faults: 0,
            expiries: 0,
            escapes: 0,
            escaped: None,
            exposed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.fair_actions(state, actions);
        if state.requests.len() < self.bound.requests.into() {
            // The processes are alike: the first request may as well come in at the first one.
            let processes = if state.requests.is_empty() { 1 } else { self.bound.processes };
            actions.extend((0..processes).map(|process| Action::Arrive { process }));
            if state.row.is_some_and(|row| row.is_live(state)) {
                let free = |process: &u8| state.registries[usize::from(*process)].is_none();
                actions.extend((0..processes).filter(free).map(|process| Action::Recall { process }));
            }
        }
        for (number, request) in (0..).zip(&state.requests) {
            let runs = matches!(request.phase, Phase::Running { .. }) && state.session_of(number).is_some();
            if runs && state.escapes < self.bound.escapes {
                actions
                    .extend([Way::Commit, Way::RollBack, Way::Fail].map(|way| Action::Leave { request: number, way }));
            }
            if request.phase == (Phase::Asking { purpose: Purpose::Resolve }) {
                actions.push(Action::GiveUpLookingUp { request: number });
            }
        }
        if state.row.is_some_and(|row| row.is_live(state)) && state.expiries < self.bound.expiries {
            actions.push(Action::Expire);
        }
        if state.row.is_some_and(|row| !row.is_live(state)) {
            actions.push(Action::Sweep);
        }
        if state.faults < self.bound.faults {
            self.faults(state, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        state.faults += u8::from(action.is_fault());
        match action {
            Action::Arrive { process } => self.arrive(&mut state, process),
            Action::Recall { process } => state.recall(process),
            Action::Enter { request } => self.enter(&mut state, request),
            Action::AnswerFromRegistry { request } => state.requests[usize::from(request)].end(Answer::InFlight),
            Action::PassOverdueEntry { request } => self.ask(&mut state, request, Purpose::Enter),
            Action::Finish { request, verdict } => self.finish(&mut state, request, verdict),
            Action::Leave { request, way } => leave(&mut state, request, way),
            Action::Receive { session } => self.receive(&mut state, session),
            Action::NoticeLoss { request } => self.notice_loss(&mut state, request),
            Action::GiveUpLookingUp { request } => self.give_up_looking_up(&mut state, request),
            Action::Execute { session } => self.execute(&mut state, session),
            Action::EndDisconnected { session } | Action::IdleTimeout { session } => {
                state.sessions.remove(session);
            }
            Action::Sweep => state.row = None,
            Action::Expire => state.expiries += 1,
            Action::Cut { session } => state.sessions[session].connected = false,
            Action::Crash { process } => state.crash(process),
            Action::Restart => state.sessions.clear(),
        }
        state.notice_exposure();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("at most one effect", |_, state: &State| {
                let once = |age| state.effects.iter().filter(|(_, effect)| *effect == age).count() <= 1;
                state.exposed || (0..=state.expiries).all(once)
            }),
            Property::always("at most one outcome", |_, state: &State| {
                (0..=state.expiries).all(|age| state.outcomes.iter().filter(|row| row.retention == age).count() <= 1)
            }),
            Property::always("an effect is stored with its outcome", |_, state: &State| {
                let stored = |(by, retention)| {
                    let outcome = |unknown| Outcome { by, refused: false, unknown };
                    [true, false]
                        .iter()
                        .any(|unknown| state.outcomes.contains(&Row { outcome: outcome(*unknown), retention }))
                };
                let waits = |by| state.escaped == Some(by) || state.exposed;
                state.effects.iter().all(|effect| stored(*effect) || waits(effect.0))
            }),
            Property::always("no answer denies an effect", |_, state: &State| {
                let denied = |by: u8| match state.requests[usize::from(by)].phase {
                    Phase::Ended(Answer::Final { outcome, .. }) => outcome.by == by && outcome.refused,
                    Phase::Ended(Answer::RolledBack) => true,
                    _ => false,
                };
                state.exposed || !state.effects.iter().any(|(by, _)| denied(*by))
            }),
            Property::sometimes("an escape is final", |_, state: &State| {
                let told = |request: &Request| request.final_answer().is_some_and(|outcome| outcome.unknown);
                state.requests.iter().filter(|request| told(request)).count() > 1
            }),
            Property::always("an outcome stays for its retention", |_, state: &State| {
                state.outcomes.iter().filter(|row| row.is_live(state)).all(|row| state.row == Some(*row))
            }),
            Property::always("a final answer is a stored outcome", |_, state: &State| {
                let stored = |outcome| state.outcomes.iter().any(|row| row.outcome == outcome);
                state.requests.iter().all(|request| request.final_answer().is_none_or(stored))
            }),
            Property::always("never stuck", |model: &Self, state: &State| {
                model.recovers(state, true) && model.recovers(state, false)
            }),
            Property::sometimes("a retry gets the first one's answer", |_, state: &State| {
                let mut requests = (0..).zip(&state.requests);
                requests.any(|(number, request)| request.final_answer().is_some_and(|outcome| outcome.by != number))
            }),
            Property::sometimes("a duplicate is told that it is in flight", |_, state: &State| {
                state.requests.iter().any(|request| request.phase == Phase::Ended(Answer::InFlight))
            }),
            Property::sometimes("a commit without acknowledgement is found", |_, state: &State| {
                let found =
                    |request: &Request| matches!(request.phase, Phase::Ended(Answer::Final { found: true, .. }));
                state.requests.iter().any(found)
            }),
            Property::sometimes("a commit arrives after its process has died", |_, state: &State| {
                let dead = |row: &Row| state.requests[usize::from(row.outcome.by)].phase == Phase::Died;
                state.outcomes.iter().any(dead)
            }),
        ]
    }
}

impl Claim {
    fn always() -> [&'static str; 7] {
        [
            "at most one effect",
            "at most one outcome",
            "an effect is stored with its outcome",
            "an outcome stays for its retention",
            "a final answer is a stored outcome",
            "no answer denies an effect",
            "never stuck",
        ]
    }

    /// What happens by itself if nothing goes wrong.
    fn fair_actions(&self, state: &State, actions: &mut Vec<Action>) {
        for session in 0..state.sessions.len() {
            if self.can_execute(state, session) {
                actions.push(Action::Execute { session });
            }
            if state.sessions[session].connected && state.sessions[session].reply.is_some() {
                actions.push(Action::Receive { session });
            }
            if !state.sessions[session].connected {
                actions.push(Action::EndDisconnected { session });
            }
        }
        for (number, request) in (0..).zip(&state.requests) {
            match request.phase {
                Phase::Waiting => match self.registry_answers(state, request) {
                    Some(true) => actions.push(Action::AnswerFromRegistry { request: number }),
                    Some(false) => {}
                    None => actions.push(Action::Enter { request: number }),
                },
                Phase::Running { .. } => {
                    let verdicts = [Verdict::Commit, Verdict::Refuse, Verdict::Release];
                    actions.extend(verdicts.map(|verdict| Action::Finish { request: number, verdict }));
                }
                Phase::Asking { .. } | Phase::Storing { .. } | Phase::Releasing | Phase::StoringEscape
                    if state.session_of(number).is_none() =>
                {
                    actions.push(Action::NoticeLoss { request: number });
                }
                Phase::Asking { .. }
                | Phase::Storing { .. }
                | Phase::Releasing
                | Phase::StoringEscape
                | Phase::Ended(_)
                | Phase::Died => {}
            }
        }
    }

    fn faults(&self, state: &State, actions: &mut Vec<Action>) {
        for (number, session) in state.sessions.iter().enumerate() {
            if session.connected {
                actions.push(Action::Cut { session: number });
            }
            if self.protocol.idle_timeout && session.is_idle() {
                actions.push(Action::IdleTimeout { session: number });
            }
        }
        for process in 0..self.bound.processes {
            if state.requests.iter().any(|request| request.process == process && request.is_alive()) {
                actions.push(Action::Crash { process });
            }
        }
        if !state.sessions.is_empty() {
            actions.push(Action::Restart);
        }
        for (number, request) in (0..).zip(&state.requests) {
            if request.phase == Phase::Waiting && self.registry_answers(state, request).is_some() {
                actions.push(Action::PassOverdueEntry { request: number });
            }
        }
    }

    /// Whether, once nothing goes wrong any more, a client that keeps trying gets a final answer: with all processes going
    /// on (`thawed`), or with all of them frozen for ever and another one taking their place.
    fn recovers(&self, state: &State, thawed: bool) -> bool {
        let mut state = state.clone();
        let process = if thawed { 0 } else { state.add_process() };
        for _ in 0..4 {
            self.rest(&mut state, thawed, None);
            let request = state.requests.len() as u8;
            self.arrive(&mut state, process);
            self.rest(&mut state, thawed, Some(request));
            if state.requests[usize::from(request)].final_answer().is_some() {
                return true;
            }
        }
        false
    }

    /// Lets everything, or everything that is not frozen, come to rest, each in its turn. Handlers succeed.
    fn rest(&self, state: &mut State, thawed: bool, only: Option<u8>) {
        let mut actions = Vec::new();
        for turn in 0..500 {
            actions.clear();
            self.fair_actions(state, &mut actions);
            actions
                .retain(|action| !matches!(action, Action::Finish { verdict: Verdict::Refuse | Verdict::Release, .. }));
            if !thawed {
                actions.retain(|action| !state.belongs_to_frozen(*action, only));
                let idle = |session: &Session| session.is_idle() && Some(session.request) != only;
                if let (true, Some(session)) = (self.protocol.idle_timeout, state.sessions.iter().position(idle)) {
                    actions.push(Action::IdleTimeout { session });
                }
            }
            if actions.is_empty() {
                return;
            }
            let action = actions[turn % actions.len()];
            *state = self.next_state(state, action).expect("every action leads somewhere");
        }
        panic!("does not come to rest: {state:#?}");
    }
}

impl State {
    /// A request that comes by between a helper's commit and the storing of that, or a process that dies there.
    fn notice_exposure(&mut self) {
        let Some(escaped) = self.escaped else { return };
        let holds = |(number, request): (u8, &Request)| {
            number != escaped && matches!(request.phase, Phase::Running { .. } | Phase::Storing { .. })
        };
        let alive = self.requests[usize::from(escaped)].is_alive();
        let connected = self.session_of(escaped).is_some();
        // What a request has sent may arrive after its process has given it up.
        let stores = |session: &Session| session.request != escaped && session.is_storing();
        let rival = (0..).zip(&self.requests).any(holds) || self.sessions.iter().any(stores);
        // A refusal was stored while its key's lock was free for an instant, and this request had it.
        let outrun = self.row.is_some_and(|row| row.is_live(self) && row.outcome.by != escaped);
        self.exposed |= !alive || !connected || rival || outrun;
    }

    fn session_of(&self, request: u8) -> Option<usize> {
        self.sessions.iter().position(|session| session.request == request && session.connected)
    }

    /// The connections of a dead process close; what it has sent may still arrive.
    fn crash(&mut self, process: u8) {
        for (number, request) in (0..).zip(&mut self.requests) {
            if request.process == process && request.is_alive() {
                request.phase = Phase::Died;
                for session in self.sessions.iter_mut().filter(|session| session.request == number) {
                    session.connected = false;
                }
            }
        }
        self.registries[usize::from(process)] = None;
    }

    /// A request finds the outcome without a claim.
    fn recall(&mut self, process: u8) {
        let outcome = self.row.expect("only what is there is recalled").outcome;
        self.requests.push(Request { process, phase: Phase::Ended(Answer::Final { outcome, found: false }) });
    }

    fn add_process(&mut self) -> u8 {
        self.registries.push(None);
        (self.registries.len() - 1) as u8
    }

    fn belongs_to_frozen(&self, action: Action, only: Option<u8>) -> bool {
        let request = match action {
            Action::Enter { request }
            | Action::AnswerFromRegistry { request }
            | Action::Finish { request, .. }
            | Action::NoticeLoss { request } => Some(request),
            Action::Receive { session } => Some(self.sessions[session].request),
            _ => return false,
        };
        request != only
    }
}

/// Runs in the handler's transaction, behind the back of the process.
fn leave(state: &mut State, request: u8, way: Way) {
    let session = state.session_of(request).expect("only a handler with a connection leaves");
    state.escapes += 1;
    let age = state.expiries;
    if way != Way::Fail && !state.sessions[session].is_aborted() {
        // Its own effects, or those of the transaction in its place: one attempt's are one.
        if !state.effects.contains(&(request, age)) {
            state.effects.push((request, age));
        }
        state.escaped = Some(request);
    }
    // Documented as not seen: a failed transaction that is not the claim's, without a witness of what came before it.
    state.exposed |= way == Way::Fail && state.sessions[session].is_without_a_trace();
    state.sessions[session].leave(way);
}

const SMALL: Bound = Bound { requests: 2, processes: 2, faults: 1, expiries: 1, escapes: 0 };
const ESCAPES: Bound = Bound { requests: 2, processes: 2, faults: 1, expiries: 0, escapes: 1 };
const TWO_ESCAPES: Bound = Bound { faults: 0, escapes: 2, ..ESCAPES };
const TWO_FAULTS: Bound = Bound { faults: 2, ..SMALL };
const THREE_REQUESTS: Bound = Bound { requests: 3, ..SMALL };

/// Checks every state within the bound, and says how many there are.
fn check(protocol: Protocol, bound: Bound) -> usize {
    let checker = Claim { protocol, bound }.checker().threads(2).spawn_bfs().join();
    for property in Claim::always() {
        checker.assert_no_discovery(property);
    }
    for property in [
        "a retry gets the first one's answer",
        "a duplicate is told that it is in flight",
        "a commit without acknowledgement is found",
        "a commit arrives after its process has died",
    ] {
        checker.assert_any_discovery(property);
    }
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{states} states, {depth} deep: {protocol:?} within {bound:?}");
    states
}

/// The same without what cannot come about within so few steps.
fn check_escapes(protocol: Protocol, bound: Bound) -> usize {
    let checker = Claim { protocol, bound }.checker().threads(2).spawn_bfs().join();
    for property in Claim::always() {
        checker.assert_no_discovery(property);
    }
    checker.assert_any_discovery("an escape is final");
    let states = checker.unique_state_count();
    println!("{states} states: {protocol:?} within {bound:?}");
    states
}

/// Asserts that the checker finds `promise` broken, and shows the shortest way there.
fn assert_broken(protocol: Protocol, promise: &'static str) {
    assert_broken_within(protocol, SMALL, promise);
}

fn assert_broken_within(protocol: Protocol, bound: Bound, promise: &'static str) {
    let found = HasDiscoveries::AllOf([promise].into());
    let checker = Claim { protocol, bound }.checker().finish_when(found).spawn_bfs().join();
    for action in checker.assert_any_discovery(promise).into_actions() {
        println!("{action:?}");
    }
}

#[test]
fn the_protocol_keeps_its_promises() {
    assert!(check(PROTOCOL, SMALL) > 10_000);
}

/// A handler that leaves its transaction, in every way, at every time.
#[test]
fn an_escape_is_final_and_denied_by_nobody() {
    assert!(check_escapes(PROTOCOL, ESCAPES) > 1_000);
    assert!(check_escapes(PROTOCOL, TWO_ESCAPES) > 1_000);
}

#[test]
fn without_the_mark_an_escape_is_repeated() {
    assert_broken_within(Protocol { mark: false, ..PROTOCOL }, TWO_ESCAPES, "at most one effect");
}

#[test]
fn without_the_witness_a_failed_statement_hides_an_escape() {
    assert_broken_within(Protocol { witness: false, ..PROTOCOL }, TWO_ESCAPES, "at most one effect");
}

#[test]
fn an_escape_that_is_not_stored_is_repeated() {
    assert_broken_within(Protocol { stores_escapes: false, ..PROTOCOL }, ESCAPES, "at most one effect");
}

#[test]
#[ignore = "takes minutes; run it with `--release -- --ignored` when the protocol changes"]
fn the_protocol_keeps_its_promises_within_larger_bounds() {
    for snapshot in [Snapshot::AfterLock, Snapshot::BeforeLock] {
        for lock in [true, false] {
            check(Protocol { snapshot, lock, ..PROTOCOL }, TWO_FAULTS);
            check(Protocol { snapshot, lock, ..PROTOCOL }, THREE_REQUESTS);
        }
    }
}

#[test]
fn the_primary_key_alone_suffices() {
    let without_lock = Protocol { lock: false, ..PROTOCOL };
    check(without_lock, SMALL);
    check(Protocol { snapshot: Snapshot::BeforeLock, ..PROTOCOL }, SMALL);
    check(Protocol { snapshot: Snapshot::BeforeLock, ..without_lock }, SMALL);
}

#[test]
fn a_look_up_in_the_snapshot_of_the_lock_and_no_primary_key_run_twice() {
    let mutation = Protocol { snapshot: Snapshot::BeforeLock, primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one effect");
}

#[test]
fn neither_lock_nor_primary_key_run_twice() {
    let mutation = Protocol { lock: false, primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one effect");
}

#[test]
fn the_lock_without_the_primary_key_stores_two_answers_around_a_refusal() {
    let mutation = Protocol { primary_key: false, ..PROTOCOL };
    assert_broken(mutation, "at most one outcome");
}

#[test]
fn two_commits_run_twice() {
    assert_broken(Protocol { one_commit: false, ..PROTOCOL }, "at most one effect");
}

#[test]
fn believing_in_a_lost_commit_loses_a_success() {
    let mutation = Protocol { looks_up_lost_commits: false, ..PROTOCOL };
    assert_broken(mutation, "a final answer is a stored outcome");
}

#[test]
fn an_expired_row_that_nobody_replaces_locks_the_key() {
    assert_broken(Protocol { replaces_expired: false, ..PROTOCOL }, "never stuck");
}

#[test]
fn a_frozen_process_without_the_idle_timeout_locks_the_key() {
    assert_broken(Protocol { idle_timeout: false, ..PROTOCOL }, "never stuck");
}

#[test]
fn a_registry_that_forgets_to_forget_locks_the_key() {
    assert_broken(Protocol { leaves_registry: false, ..PROTOCOL }, "never stuck");
}
