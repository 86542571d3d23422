"""A small OpenStack over HTTP: the calls of Keystone, Nova, Neutron and Glance that the fleet's role makes.

Real HTTP for the real openstacksdk: tokens with a catalogue, a server that is built for a moment before it is active,
security groups that stay while a server is in them. What it does not know it answers with 404 and notes. Shapes are
those of the API reference (docs.openstack.org/api-ref): identity v3, compute v2.1, network v2.0, image v2.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
import uuid
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Row = dict[str, Any]
Answer = tuple[int, Any]

PROJECT = "11111111111111111111111111111111"
OWNER = {"project_id": PROJECT, "tenant_id": PROJECT}
USER = "22222222222222222222222222222222"
UNAUTHORIZED: Answer = (
    401,
    {"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}},
)
EXTERNAL, PRIVATE = "33333333-3333-3333-3333-333333333333", "55555555-5555-5555-5555-555555555555"
IMAGES = {
    "Debian 12": "44444444-4444-4444-4444-444444444444",
    "with a driver": "66666666-6666-6666-6666-666666666666",
}


@dataclass
class Cloud:
    """The state of the cloud; ``refused`` are names of servers that exceed its capacity.

    Servers get addresses of ``fixed``; where that is a private network, those of ``floating`` can be reached, of which
    there are ``pool``. An address stays, and is paid for, when its server is gone. Of a flavor in a zone that is
    ``full`` a server is in the state ERROR; ``requests`` are the flavors and zones of all servers that were asked for.
    """

    password: str
    servers: dict[str, Row] = field(default_factory=dict)
    groups: dict[str, Row] = field(default_factory=dict)
    credentials: dict[str, Row] = field(default_factory=dict)
    rules: dict[str, Row] = field(default_factory=dict)
    issued: Row | None = None  # the application credential of the last token
    refused: set[str] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)
    user_data: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Row | None] = field(default_factory=dict)  # with the application credential of each, if any
    without_credentials: str = ""  # why Keystone refuses application credentials
    unlisted: dict[str, int] = field(default_factory=dict)  # how many lists omit the servers of these names
    ignores_rules: bool = False  # as a Keystone before the access rules of Train
    url: str = ""
    flavors: tuple[str, ...] = ("c3-16", "c3-32", "l4-90")
    zones: tuple[str, ...] = ("nova",)
    full: set[tuple[str, str]] = field(default_factory=set)
    requests: list[tuple[str, str]] = field(default_factory=list)
    caller: tuple[str, Row | None] = ("", None)  # the address and the application credential of the present request
    fixed: str = "Ext-Net"
    pool: int = 4
    addresses: dict[str, Row] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=lambda: {"maxTotalInstances": -1, "maxTotalCores": -1})

    def __post_init__(self) -> None:
        self.groups["default"] = {"id": "default", "name": "default", "description": "", "security_group_rules": []}

    def environment(self, password: str) -> dict[str, str]:
        """Return the variables by which clients find the cloud, with a password that is the right one or not."""
        named = {"USERNAME": "kiln", "PASSWORD": password, "PROJECT_NAME": "kiln", "REGION_NAME": "R1"}
        domains = {"USER_DOMAIN_NAME": "Default", "PROJECT_DOMAIN_NAME": "Default", "AUTH_URL": f"{self.url}/v3"}
        return {f"OS_{name}": value for name, value in {**named, **domains}.items()}

    # identity
    def token(self, body: Row) -> Answer:
        identity = body["auth"]["identity"]
        password = identity.get("password", {}).get("user", {}).get("password")
        offered = identity.get("application_credential", {})
        row = self.credentials.get(offered.get("id", ""))
        if not (password == self.password or (row and row["secret"] == offered.get("secret"))):
            return UNAUTHORIZED
        self.issued = None if password == self.password else row
        return 201, {
            "token": {
                "methods": ["password"],
                "expires_at": "2099-01-01T00:00:00.000000Z",
                "issued_at": "2026-01-01T00:00:00.000000Z",
                "project": {"id": PROJECT, "name": "kiln", "domain": {"id": "default", "name": "Default"}},
                "user": {"id": USER, "name": "kiln", "domain": {"id": "default", "name": "Default"}},
                "roles": [{"id": "member", "name": "member"}],
                "catalog": [
                    self._service("identity", "keystone", "/v3"),
                    self._service("compute", "nova", "/compute/v2.1"),
                    self._service("network", "neutron", "/network"),
                    self._service("image", "glance", "/image"),
                ],
            }
        }

    def _service(self, kind: str, name: str, path: str) -> Row:
        endpoint = {"id": kind, "interface": "public", "region": "R1", "region_id": "R1", "url": self.url + path}
        return {"id": kind, "type": kind, "name": name, "endpoints": [endpoint]}

    def create_credential(self, body: Row) -> Answer:
        requested = body["application_credential"]
        if self.without_credentials:
            return 403, {"error": {"code": 403, "title": "Forbidden", "message": self.without_credentials}}
        if any(row["name"] == requested["name"] for row in self.credentials.values()):
            text = "Conflict occurred attempting to store application_credential - Duplicate entry found."
            return 409, {"error": {"code": 409, "title": "Conflict", "message": text}}
        row = {"unrestricted": False, **requested, "id": uuid.uuid4().hex, "project_id": PROJECT}
        row.setdefault("secret", uuid.uuid4().hex)
        rules = [{**rule, "id": uuid.uuid4().hex} for rule in row.pop("access_rules", [])]
        if not self.ignores_rules:
            row["access_rules"] = rules
            self.rules.update({rule["id"]: rule for rule in rules})
        self.credentials[row["id"]] = row
        return 201, {"application_credential": row}

    def list_credentials(self) -> Answer:
        rows = [{name: value for name, value in row.items() if name != "secret"} for row in self.credentials.values()]
        return 200, {"application_credentials": rows}

    def show_credential(self, key: str) -> Answer:
        rows = [row for row in self.list_credentials()[1]["application_credentials"] if row["id"] == key]
        return (200, {"application_credential": rows[0]}) if rows else (404, {"error": {"code": 404, "message": key}})

    def delete_credential(self, key: str) -> Answer:
        self.tokens = {token: row for token, row in self.tokens.items() if row is None or row["id"] != key}
        found = self.credentials.pop(key, None)
        return (204, None) if found else (404, {"error": {"code": 404, "message": key}})

    def delete_access_rule(self, key: str) -> Answer:
        if any(rule["id"] == key for row in self.credentials.values() for rule in row.get("access_rules", ())):
            return 403, {"error": {"code": 403, "message": "the rule is in use"}}
        return (204, None) if self.rules.pop(key, None) else (404, {"error": {"code": 404, "message": key}})

    def allows(self, token: str, method: str, path: str) -> bool:
        """Return whether a token's access rules allow a request, as keystonemiddleware compares them."""
        row = self.tokens[token]
        if row is None or "access_rules" not in row:
            return True
        service = path.split("/")[1]  # each has its type as the first part of its path
        return {"service": service, "method": method, "path": path} in [
            {name: rule[name] for name in ("service", "method", "path")} for rule in row["access_rules"]
        ]

    # compute
    def create_server(self, body: Row) -> Answer:
        asked = body["server"]
        if asked["name"] in self.refused:
            return 403, {"forbidden": {"code": 403, "message": "Quota exceeded for instances: Requested 1"}}
        zone = asked.get("availability_zone", self.zones[0])
        if zone not in self.zones:
            return 400, {"badRequest": {"code": 400, "message": "The requested availability zone is not available"}}
        self.requests.append((self.flavors[int(asked["flavorRef"])], zone))
        row = {
            "id": str(uuid.uuid4()),
            "name": asked["name"],
            "OS-EXT-AZ:availability_zone": zone,
            "status": "BUILD",
            "metadata": asked.get("metadata", {}),
            "flavor": {"original_name": self.flavors[int(asked["flavorRef"])], "vcpus": 8, "ram": 16000, "disk": 200},
            "image": {"id": asked.get("imageRef", "")},
            "addresses": {},
            "security_groups": asked.get("security_groups", []),
            "tenant_id": PROJECT,
            "user_id": USER,
            "networks": asked.get("networks"),
            "created": "2026-01-01T00:00:00Z",
            "OS-EXT-STS:task_state": "spawning",
            "OS-EXT-STS:vm_state": "building",
            "OS-EXT-STS:power_state": 0,
            "os-extended-volumes:volumes_attached": [],
        }
        self.servers[row["id"]] = row
        self.user_data[asked["name"]] = asked.get("user_data", "")
        return 202, {"server": {"id": row["id"], "links": [], "adminPass": "x"}}

    def show_server(self, key: str) -> Answer:
        if key not in self.servers:
            return 404, {"itemNotFound": {"code": 404, "message": f"Instance {key} could not be found."}}
        row = dict(self.servers[key])
        self._build(self.servers[key])
        return 200, {"server": row}

    def list_servers(self, query: Row) -> Answer:
        rows = [dict(row) for row in self.servers.values() if re.search(query.get("name", ""), row["name"])]
        for row in self.servers.values():
            self._build(row)
        if "marker" in query:
            return 200, {"servers": []}
        omitted = {row["name"] for row in rows if self.unlisted.get(row["name"], 0) > 0}
        for name in omitted:
            self.unlisted[name] -= 1
        return 200, {"servers": [row for row in rows if row["name"] not in omitted]}

    def _build(self, row: Row) -> None:
        """Return a server; one that was being built is active at the next request."""
        if row["status"] == "BUILD" and self._is_full(row):
            fault = {"code": 500, "message": "No valid host was found. There are not enough hosts available."}
            row.update({"status": "ERROR", "fault": fault, "OS-EXT-STS:task_state": None})
        elif row["status"] == "BUILD":
            address = {"addr": self.address_of(row), "version": 4, "OS-EXT-IPS:type": "fixed"}
            row.update({"status": "ACTIVE", "addresses": {self.fixed: [address]}, "OS-EXT-STS:task_state": None})

    def address_of(self, row: Row) -> str:
        """Return the address of a new server."""
        return f"198.51.100.{len(self.servers)}"

    def _is_full(self, row: Row) -> bool:
        return (row["flavor"]["original_name"], row["OS-EXT-AZ:availability_zone"]) in self.full

    def show_limits(self) -> Answer:
        return 200, {"limits": {"rate": [], "absolute": self.limits}}

    def list_zones(self) -> Answer:
        state = {"zoneState": {"available": True}, "hosts": None}
        return 200, {"availabilityZoneInfo": [{"zoneName": zone, **state} for zone in self.zones]}

    def shut_off(self, name: str) -> None:
        """Let a server be as one is that has shut itself down: there, and charged for."""
        (row,) = (item for item in self.servers.values() if item["name"] == name)
        row.update({"status": "SHUTOFF", "OS-EXT-STS:vm_state": "stopped", "OS-EXT-STS:power_state": 4})

    def double(self, name: str) -> str:
        """Add another server of a name, with a floating address of its own; return its id."""
        (row,) = (item for item in self.servers.values() if item["name"] == name)
        key = str(uuid.uuid4())
        self.servers[key] = {**row, "id": key}
        (address,) = (item for item in self.addresses.values() if item["description"].startswith(f"address of {name} "))
        copy = {**address, "id": str(uuid.uuid4()), "floating_ip_address": "203.0.113.99", "port_id": self._port(key)}
        self.addresses[copy["id"]] = copy
        return key

    def delete_server(self, key: str) -> Answer:
        for address in self.addresses.values():
            if address["port_id"] == self._port(key):
                address.update({"port_id": None, "fixed_ip_address": None, "status": "DOWN"})
        return (204, None) if self.servers.pop(key, None) else (404, {"itemNotFound": {"code": 404, "message": key}})

    def server_groups(self, key: str) -> Answer:
        names = {item["name"] for item in self.servers[key]["security_groups"]}
        return 200, {"security_groups": [row for row in self.groups.values() if {row["id"], row["name"]} & names]}

    def list_flavors(self, query: Row) -> Answer:
        rows = [
            {"id": str(number), "name": name, "vcpus": 8, "ram": 32000, "disk": 200, "extra_specs": {}, "links": []}
            for number, name in enumerate(self.flavors)
        ]
        return 200, {"flavors": [] if "marker" in query else rows}

    # network
    def create_group(self, body: Row) -> Answer:
        row = {**body["security_group"], "id": str(uuid.uuid4()), "security_group_rules": [], **OWNER}
        row.setdefault("description", "")
        row["created_at"] = dt.datetime.now(tz=dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.groups[row["id"]] = row
        for ether_type in ("IPv4", "IPv6"):  # as Neutron does
            rule = {"direction": "egress", "ethertype": ether_type, "security_group_id": row["id"]}
            self._rule(rule)
        return 201, {"security_group": row}

    def list_groups(self, query: Row) -> Answer:
        expected = {name: value for name, value in query.items() if name in {"name", "id", "project_id", "description"}}
        rows = [row for row in self.groups.values() if all(row.get(name) == value for name, value in expected.items())]
        return 200, {"security_groups": rows}

    def show_group(self, key: str) -> Answer:
        return (200, {"security_group": self.groups[key]}) if key in self.groups else (404, {"NeutronError": {}})

    def update_group(self, key: str, body: Row) -> Answer:
        self.groups[key].update(body["security_group"])
        return self.show_group(key)

    def delete_group(self, key: str) -> Answer:
        name = self.groups[key]["name"]
        if any(name in (item["name"] for item in row["security_groups"]) for row in self.servers.values()):
            return 409, {"NeutronError": {"type": "SecurityGroupInUse", "message": f"Security Group {key} in use."}}
        del self.groups[key]
        return 204, None

    def create_rule(self, body: Row) -> Answer:
        if "security_group_rules" in body:  # several at once
            return 201, {"security_group_rules": [self._rule(item) for item in body["security_group_rules"]]}
        return 201, {"security_group_rule": self._rule(body["security_group_rule"])}

    def _rule(self, asked: Row) -> Row:
        empty = dict.fromkeys(("protocol", "port_range_min", "port_range_max", "remote_ip_prefix", "remote_group_id"))
        row = {**empty, "description": "", **OWNER, **asked, "id": str(uuid.uuid4())}
        self.groups[row["security_group_id"]]["security_group_rules"].append(row)
        return row

    def delete_rule(self, key: str) -> Answer:
        for group in self.groups.values():
            group["security_group_rules"] = [item for item in group["security_group_rules"] if item["id"] != key]
        return 204, None

    def list_rules(self, query: Row) -> Answer:
        rows = [rule for group in self.groups.values() for rule in group["security_group_rules"]]
        group = query.get("security_group_id")
        return 200, {"security_group_rules": [row for row in rows if group in (None, row["security_group_id"])]}

    def list_networks(self, query: Row) -> Answer:
        rows = [
            {"id": EXTERNAL, "name": "Ext-Net", "status": "ACTIVE", "subnets": [], "router:external": True, **OWNER},
            {"id": PRIVATE, "name": "private", "status": "ACTIVE", "subnets": [], "router:external": False, **OWNER},
        ]
        return 200, {"networks": [row for row in rows if query.get("name", row["name"]) == row["name"]]}

    def show_network(self, key: str) -> Answer:
        rows = self.list_networks({})[1]["networks"]
        result = [row for row in rows if row["id"] == key]
        return (200, {"network": result[0]}) if result else (404, {"NeutronError": {"type": "NetworkNotFound"}})

    @staticmethod
    def _port(server: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, server))

    def list_ports(self, query: Row) -> Answer:
        rows = [
            {
                "id": self._port(key),
                "device_id": key,
                "network_id": PRIVATE,
                "fixed_ips": [{"ip_address": item["addr"], "subnet_id": PRIVATE}],
                "status": "ACTIVE",
                "name": "",
                **OWNER,
            }
            for key, row in self.servers.items()
            for network in row["addresses"].values()
            for item in network
            if item["OS-EXT-IPS:type"] == "fixed"
        ]
        return 200, {"ports": [row for row in rows if query.get("device_id", row["device_id"]) == row["device_id"]]}

    def create_address(self, body: Row) -> Answer:
        asked = body["floatingip"]
        if asked["floating_network_id"] != EXTERNAL:
            text = f"Bad floatingip request: Network {asked['floating_network_id']} is not a valid external network."
            return 400, {"NeutronError": {"type": "BadRequest", "message": text, "detail": ""}}
        if len(self.addresses) >= self.pool:
            text = f"No more IP addresses available on network {EXTERNAL}."
            return 409, {"NeutronError": {"type": "IpAddressGenerationFailure", "message": text, "detail": ""}}
        row = {
            "id": str(uuid.uuid4()),
            "floating_ip_address": f"203.0.113.{len(self.addresses) + 1}",
            "fixed_ip_address": None,
            "description": "",
            "router_id": None,
            "status": "DOWN",
            **OWNER,
            **asked,
        }
        self.addresses[row["id"]] = row
        for key, server in self.servers.items():
            if self._port(key) == row["port_id"]:
                (network,) = server["addresses"].values()
                row.update({"status": "ACTIVE", "fixed_ip_address": network[0]["addr"]})
                floating = {"addr": row["floating_ip_address"], "version": 4, "OS-EXT-IPS:type": "floating"}
                server["addresses"] = {next(iter(server["addresses"])): [*network, floating]}
        return 201, {"floatingip": row}

    def list_addresses(self, query: Row) -> Answer:
        named = {name: value for name, value in query.items() if name not in {"limit", "marker", "fields"}}
        rows = [row for row in self.addresses.values() if all(row.get(name) == text for name, text in named.items())]
        return 200, {"floatingips": rows}

    def show_address(self, key: str) -> Answer:
        result = self.addresses.get(key)
        return (200, {"floatingip": result}) if result else (404, {"NeutronError": {"type": "FloatingIPNotFound"}})

    def delete_address(self, key: str) -> Answer:
        return (204, None) if self.addresses.pop(key, None) else (404, {"NeutronError": {"type": "FloatingIPNotFound"}})

    # image
    def list_images(self, query: Row) -> Answer:
        rows = [{"id": key, "name": name, "status": "active"} for name, key in IMAGES.items()]
        return 200, {
            "images": [row for row in rows if query.get("name", row["name"]) == row["name"]],
            "schema": "",
            "first": "",
        }

    def answer(self, method: str, path: str, query: Row, body: Row) -> Answer:
        """Find the call that is meant."""
        for expected, pattern, call in CALLS:
            match = re.fullmatch(pattern, path)
            if match and expected == method:
                return call(self, *match.groups(), query=query, body=body)
        self.unknown.append(f"{method} {path}")
        return 404, {"itemNotFound": {"code": 404, "message": f"no {method} {path} here"}}


def _versions(cloud: Cloud, path: str, *, query: Row, body: Row) -> Answer:
    """Return each service's versions."""
    kind = path.strip("/").split("/")[0]
    link = [{"rel": "self", "href": f"{cloud.url}{path if path.endswith('/') else path + '/'}"}]
    if kind == "v3":
        return 200, {
            "version": {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": f"{cloud.url}/v3/"}]}
        }
    if kind == "compute":
        limits = {"version": "2.90", "min_version": "2.1"}
        return 200, {"version": {"id": "v2.1", "status": "CURRENT", "links": link, **limits}}
    number = "v2.0" if kind == "network" else "v2.9"
    place = f"{cloud.url}/{kind}/{'v2.0' if kind == 'network' else 'v2'}/"
    return 200, {"versions": [{"id": number, "status": "CURRENT", "links": [{"rel": "self", "href": place}]}]}


def _call(call: Callable[..., Answer], takes: str = "") -> Callable[..., Answer]:
    """Return a call of a cloud's method, or of what its class has in its place."""

    def with_what_it_takes(cloud: Cloud, *words: str, query: Row, body: Row) -> Answer:
        setting = {"query": (query,), "body": (body,), "": ()}[takes]
        return getattr(cloud, call.__name__)(*words, *setting)  # type: ignore[no-any-return]

    return with_what_it_takes


SERVERS, GROUPS = "/compute/v2.1/servers", "/network/v2.0/security-groups"
RULES, ADDRESSES = "/network/v2.0/security-group-rules", "/network/v2.0/floatingips"
CALLS: tuple[tuple[str, str, Callable[..., Answer]], ...] = (
    ("GET", r"(/v3/?|/compute/v2\.1/?|/network/?|/network/v2\.0/?|/image/?|/image/v2/?)", _versions),
    ("POST", "/v3/auth/tokens", _call(Cloud.token, "body")),
    ("POST", f"/v3/users/{USER}/application_credentials", _call(Cloud.create_credential, "body")),
    ("GET", f"/v3/users/{USER}/application_credentials", _call(Cloud.list_credentials)),
    ("GET", f"/v3/users/{USER}/application_credentials/([0-9a-f]{{32}})", _call(Cloud.show_credential)),
    ("DELETE", f"/v3/users/{USER}/application_credentials/([0-9a-f]{{32}})", _call(Cloud.delete_credential)),
    ("DELETE", f"/v3/users/{USER}/access_rules/([0-9a-f]{{32}})", _call(Cloud.delete_access_rule)),
    ("POST", SERVERS, _call(Cloud.create_server, "body")),
    ("GET", f"{SERVERS}(?:/detail)?", _call(Cloud.list_servers, "query")),
    ("GET", f"{SERVERS}/([0-9a-f-]{{36}})", _call(Cloud.show_server)),
    ("DELETE", f"{SERVERS}/([0-9a-f-]{{36}})", _call(Cloud.delete_server)),
    ("GET", f"{SERVERS}/([0-9a-f-]{{36}})/os-security-groups", _call(Cloud.server_groups)),
    ("GET", "/compute/v2.1/limits", _call(Cloud.show_limits)),
    ("GET", "/compute/v2.1/os-availability-zone(?:/detail)?", _call(Cloud.list_zones)),
    ("GET", "/compute/v2.1/flavors(?:/detail)?", _call(Cloud.list_flavors, "query")),
    ("POST", GROUPS, _call(Cloud.create_group, "body")),
    ("GET", GROUPS, _call(Cloud.list_groups, "query")),
    ("GET", f"{GROUPS}/([0-9a-f-]{{36}})", _call(Cloud.show_group)),
    ("PUT", f"{GROUPS}/([0-9a-f-]{{36}})", _call(Cloud.update_group, "body")),
    ("DELETE", f"{GROUPS}/([0-9a-f-]{{36}})", _call(Cloud.delete_group)),
    ("POST", RULES, _call(Cloud.create_rule, "body")),
    ("DELETE", f"{RULES}/([0-9a-f-]{{36}})", _call(Cloud.delete_rule)),
    ("GET", RULES, _call(Cloud.list_rules, "query")),
    ("GET", "/network/v2.0/networks", _call(Cloud.list_networks, "query")),
    ("GET", "/network/v2.0/networks/([0-9a-f-]{36})", _call(Cloud.show_network)),
    ("GET", "/network/v2.0/ports", _call(Cloud.list_ports, "query")),
    ("POST", ADDRESSES, _call(Cloud.create_address, "body")),
    ("GET", ADDRESSES, _call(Cloud.list_addresses, "query")),
    ("GET", f"{ADDRESSES}/([0-9a-f-]{{36}})", _call(Cloud.show_address)),
    ("DELETE", f"{ADDRESSES}/([0-9a-f-]{{36}})", _call(Cloud.delete_address)),
    ("GET", "/image/v2/images", _call(Cloud.list_images, "query")),
)


def serve(cloud: Cloud, host: str = "127.0.0.1") -> Iterator[Cloud]:
    """Let a cloud answer on a free port of this computer while the generator waits."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            split = urlsplit(self.path)
            with lock:
                token = self.headers.get("X-Auth-Token", "")
                known = token in cloud.tokens and cloud.allows(token, self.command, split.path)
                cloud.caller = self.client_address[0], cloud.tokens.get(token)
                if not known and split.path not in {"/v3", "/v3/", "/v3/auth/tokens"}:
                    code, answer = UNAUTHORIZED
                else:
                    code, answer = cloud.answer(self.command, split.path, dict(parse_qsl(split.query)), body)
            self._send(code, answer)

        def _send(self, code: int, answer: object) -> None:
            text = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(code)
            if self.path.endswith("/auth/tokens") and code == 201:
                token = uuid.uuid4().hex
                cloud.tokens[token] = cloud.issued
                self.send_header("X-Subject-Token", token)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _answer  # noqa: N815 - http.server calls these names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((host, 0), Handler)
    cloud.url = f"http://{host}:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield cloud
    finally:
        server.shutdown()
        server.server_close()
