"""Whether a query keeps to the session that it is given: a reading of its parsed text, of any database's dialect.

A table is bound to the session if its `session_id` is equal to the parameter, or to the `session_id` of something that
is: another table, a subquery, a common table expression. Only what has to hold counts, so an equality within an OR does
not. A new row has to get a bound value.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp

TABLES = {
    "sessions", "agent_state_ledger", "checkpoint_log", "agent_memory", "pending_writes", "working_context",
}  # fmt: skip
PARAMETERS = {"session_id", "target_id"}
"""Those that name a session: the one that a query is about, and the one that a copy goes to."""

Atom = tuple[str, str]
"""A column: whose (an alias, "" where nothing is said) and its name."""


@dataclass
class Output:
    """What a query gives: the names of its columns, and which of them hold the session."""

    names: list[str]
    bound: list[bool]
    everything: bool = False
    """Whether it is `*` of something that is bound."""

    def has(self, name: str) -> bool:
        return (self.everything and name == "session_id") or (name, True) in zip(self.names, self.bound, strict=True)


@dataclass
class Reading:
    """One statement under way, and the tables that were found to stray from its session."""

    strays: list[str] = field(default_factory=list)

    def statement(self, tree: exp.Expression) -> None:
        if isinstance(tree, exp.Insert):
            self.insert(tree)
        elif isinstance(tree, (exp.Update, exp.Delete)):
            ctes = self.common(tree, frozenset(), {})
            self.scope(tree, [tree.this, *_joined(tree)], tree.args.get("where"), frozenset(), ctes)
        else:
            self.query(tree, frozenset(), {})

    def insert(self, tree: exp.Insert) -> None:
        ctes = self.common(tree, frozenset(), {})
        schema, source = tree.this, tree.expression
        columns = [column.name for column in schema.expressions]
        if isinstance(source, exp.Values):
            values = [_is_parameter(value) for value in source.expressions[0].expressions]
            assert len(source.expressions) == 1, "several rows"
        else:
            values = self.query(source, frozenset(), ctes).bound
        table = schema.this
        if table.name in TABLES and not dict(zip(columns, values, strict=True)).get("session_id"):
            self.strays.append(f"a new row of {table.name}")
        bound = frozenset({(table.alias_or_name, "session_id"), ("excluded", "session_id")})
        if conflict := tree.args.get("conflict"):
            for inner in _outermost_queries(conflict):
                self.query(inner, bound, ctes)

    def common(self, tree: exp.Expression, outer: frozenset[Atom], ctes: Mapping[str, Output]) -> dict[str, Output]:
        """The common table expressions of a query, those around it included. One that refers to itself is taken for
        what its first part gives, and has to give that in the other part too."""
        found = dict(ctes)
        given = tree.args.get("with_")
        for cte in given.expressions if given else ():
            names = [column.name for column in cte.args["alias"].args.get("columns") or ()]
            inner = cte.this
            if isinstance(inner, exp.SetOperation):
                found[cte.alias] = _named(Reading().query(inner.left, outer, found), names)
                found[cte.alias] = _named(Reading().query(inner, outer, found), names)
            found[cte.alias] = _named(self.query(inner, outer, found), names)
        return found

    def query(self, tree: exp.Expression, outer: frozenset[Atom], ctes: Mapping[str, Output]) -> Output:
        ctes = self.common(tree, outer, ctes)
        if isinstance(tree, exp.SetOperation):
            left, right = self.query(tree.left, outer, ctes), self.query(tree.right, outer, ctes)
            return Output(left.names, [a and b for a, b in zip(left.bound, right.bound, strict=True)])
        if isinstance(tree, (exp.Subquery, exp.Paren)):
            return self.query(tree.this, outer, ctes)
        assert isinstance(tree, exp.Select), type(tree)
        sources = [*([tree.args["from_"].this] if tree.args.get("from_") else []), *_joined(tree)]
        bound = self.scope(tree, sources, tree.args.get("where"), outer, ctes)
        return Output(
            [column.alias_or_name for column in tree.selects],
            [_is_bound(column, bound) for column in tree.selects],
            everything=tree.is_star and any(name == "session_id" for _, name in bound - outer),
        )

    def scope(
        self,
        tree: exp.Expression,
        sources: list[exp.Expression],
        where: exp.Expression | None,
        outer: frozenset[Atom],
        ctes: Mapping[str, Output],
    ) -> frozenset[Atom]:
        """Looks at the tables of one query, and into its subqueries; which columns hold the session."""
        conditions = [where.this] if where else []
        conditions += [join.args["on"] for join in tree.args.get("joins") or () if join.args.get("on")]
        tables = {source.alias_or_name for source in sources if isinstance(source, exp.Table) and source.name in TABLES}
        equal = [pair for condition in conditions for pair in _equalities(condition)]
        given = {
            (source.alias_or_name, name)
            for source in sources
            if isinstance(source, exp.Table) and source.name in ctes
            for name in {*ctes[source.name].names, "session_id"}
            if ctes[source.name].has(name)
        }
        bound = _closure(outer | given, equal, tables)
        inner = [source for source in sources if isinstance(source, (exp.Subquery, exp.Lateral))]
        for source in inner:
            for query in _outermost_queries(source):
                found = self.query(query, bound, ctes)
                alias = source.args.get("alias")
                columns = [c.name for c in alias.args.get("columns") or ()] if alias else []
                named = _named(found, columns)
                given |= {(source.alias_or_name, n) for n in {*named.names, "session_id"} if named.has(n)}
        bound = _closure(outer | given, equal, tables)
        self.strays += [
            f"{source.name} as {source.alias_or_name}"
            for source in sources
            if source.alias_or_name in tables and (source.alias_or_name, "session_id") not in bound
        ]
        own = {id(query) for source in inner for query in _outermost_queries(source)}
        skipped = tree.args.get("with_")
        for part in tree.iter_expressions():
            if part is skipped:
                continue
            for query in _outermost_queries(part):
                if id(query) not in own:
                    self.query(query, bound, ctes)
        return bound


def strays(text: str, dialect: str) -> list[str]:
    """The tables that a query touches without being bound to the session that it is given."""
    text = re.sub(r"%\((\w+)\)[sb]", r":\1", text).replace("%%", "%")
    tree = sqlglot.parse_one(text, read=dialect)
    assert not isinstance(tree, exp.Command), f"could not be parsed: {text}"
    reading = Reading()
    if {table.name for table in tree.find_all(exp.Table)} & TABLES:
        reading.statement(tree)
    return reading.strays


def _joined(tree: exp.Expression) -> list[exp.Expression]:
    found = [join.this for join in tree.args.get("joins") or ()]
    found += tree.args.get("laterals") or ()
    if isinstance(tree, exp.Update) and tree.args.get("from_"):
        found.append(tree.args["from_"].this)
    return found


def _named(output: Output, names: list[str]) -> Output:
    """The output under other names, if there are any."""
    if not names:
        return output
    if output.everything:
        return Output(names, [False] * len(names))
    return Output(names, output.bound)


def _outermost_queries(tree: exp.Expression) -> Iterator[exp.Expression]:
    """The queries within an expression, not those within them."""
    if isinstance(tree, (exp.Select, exp.SetOperation)):
        yield tree
        return
    for child in tree.iter_expressions():
        yield from _outermost_queries(child)


def _equalities(condition: exp.Expression) -> Iterator[tuple[exp.Expression, exp.Expression]]:
    """What has to be equal for a condition to hold."""
    if isinstance(condition, exp.Paren):
        yield from _equalities(condition.this)
    elif isinstance(condition, exp.And):
        yield from _equalities(condition.left)
        yield from _equalities(condition.right)
    elif isinstance(condition, exp.EQ):
        yield _bare(condition.left), _bare(condition.right)


def _bare(value: exp.Expression) -> exp.Expression:
    while isinstance(value, (exp.Cast, exp.Paren, exp.Alias)):
        value = value.this
    return value


def _is_parameter(value: exp.Expression) -> bool:
    value = _bare(value)
    return isinstance(value, exp.Placeholder) and value.name in PARAMETERS


def _atom(value: exp.Expression, tables: set[str]) -> Atom | None:
    """A column; one that says not whose it is belongs to the only table there is."""
    if not isinstance(value, exp.Column):
        return None
    return value.table or (next(iter(tables)) if len(tables) == 1 else ""), value.name


def _is_bound(value: exp.Expression, bound: frozenset[Atom]) -> bool:
    value = _bare(value)
    if _is_parameter(value):
        return True
    if not isinstance(value, exp.Column):
        return False
    return (value.table, value.name) in bound or (not value.table and any(name == value.name for _, name in bound))


def _closure(
    bound: frozenset[Atom] | set[Atom], equal: list[tuple[exp.Expression, exp.Expression]], tables: set[str]
) -> frozenset[Atom]:
    """All columns that are equal to the session."""
    found = set(bound)
    while True:
        before = len(found)
        for pair in equal:
            for one, other in (pair, pair[::-1]):
                atom = _atom(one, tables)
                if atom and (_is_parameter(other) or _atom(other, tables) in found):
                    found.add(atom)
        if len(found) == before:
            return frozenset(found)
