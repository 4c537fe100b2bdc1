"""An evaluation as JUnit XML: a test case for each gate, or for each score without gates."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from nmt.commands.evaluate import EvaluatedModel
from nmt.extras.analysis.gates import gates_of
from nmt.metrics.result import EvaluationReport, show_score

# Characters that no XML document may hold.
_NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: EvaluationReport, _models: Sequence[EvaluatedModel] = ()) -> str:
    """Return the document."""
    root = ElementTree.Element("testsuites", name="nmt evaluate")
    for each in report.evaluations:
        suite = ElementTree.SubElement(root, "testsuite", name=_clean(each.test))
        gates = gates_of(each)
        for gate in gates:
            limit = f" {gate.required:g}" if gate.kind == "fail-under" else ""
            case = _add(suite, f"{gate.system}: {gate.metric} {gate.kind}{limit}")
            if not gate.met:
                failure = {"message": _clean(str(gate)), "type": gate.kind}
                ElementTree.SubElement(case, "failure", failure)
        for system in each.systems if not gates else ():
            for score in system.scores:
                _add(suite, f"{system.name}: {score.metric} {show_score(score)}")
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(sum(not gate.met for gate in gates)))
        suite.set("errors", "0")
    ElementTree.indent(root)
    return ElementTree.tostring(root, "unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    place = {"classname": f"nmt.evaluate.{suite.get('name')}", "name": _clean(name)}
    return ElementTree.SubElement(suite, "testcase", place)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
