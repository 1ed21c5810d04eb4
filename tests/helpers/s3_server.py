"""moto's S3 server in this process, with signature checks on, and the environment that leads to it."""

from __future__ import annotations

import json
import logging
import secrets
import urllib.request
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class S3Server:
    """A server, keys that it takes, and a client of its own that goes around all proxies."""

    url: str
    access_key: str
    secret_key: str
    client: Any
    real: bool = False
    """Whether it keeps objects on a disk, and is none of this process."""

    def bucket(self) -> str:
        """A new bucket."""
        name = f"test-{secrets.token_hex(6)}"
        self.client.create_bucket(Bucket=name)
        return name

    def environment(self, url: str | None = None) -> dict[str, str]:
        """What a process needs to reach the server (or a proxy before it)."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            "WDSMIX_S3_ENDPOINT_URL": url or self.url,
        }

    def use(self, patch: pytest.MonkeyPatch, url: str | None = None) -> None:
        """Makes this process use it."""
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        for name, value in self.environment(url).items():
            patch.setenv(name, value)

    def keys(self, bucket: str, prefix: str = "") -> dict[str, int]:
        """Key -> size of all objects."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def get(self, bucket: str, key: str) -> bytes:
        """An object's bytes."""
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()


def connect(service: str, url: str, access_key: str, secret_key: str) -> Any:
    """A client of boto3, whatever the environment says."""
    import boto3

    return boto3.session.Session().client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
    )


def start_moto() -> tuple[Any, S3Server]:
    """Starts moto and makes it check signatures."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    iam = connect("iam", url, "any", "any")
    iam.create_user(UserName="tester")
    key = iam.create_access_key(UserName="tester")["AccessKey"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="tester", PolicyName="s3", PolicyDocument=json.dumps(policy))
    request = urllib.request.Request(
        f"{url}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}, method="POST"
    )
    urllib.request.urlopen(request).close()
    keys = key["AccessKeyId"], key["SecretAccessKey"]
    return server, S3Server(url, *keys, connect("s3", url, *keys))
