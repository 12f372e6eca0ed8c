"""Verdicts of the verifier of instructions on one instruction."""

from typing import Any

from kubealign.spec.sections.verifiers import InstructionsVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.instructions.verifier import InstructionFollowing

#: Language -> a sentence that every identifier of languages knows.
SENTENCES = {
    "en": "The house stands near the river, and the garden is full of flowers.",
    "de": "Das Haus steht am Fluss, und der Garten ist voller Blumen.",
    "fr": "La maison est près de la rivière et le jardin est plein de fleurs.",
    "es": "La casa está cerca del río y el jardín está lleno de flores.",
    "pt": "A casa fica perto do rio e o jardim está cheio de flores.",
    "it": "La casa è vicino al fiume e il giardino è pieno di fiori.",
    "fi": "Talo on joen rannalla, ja puutarha on täynnä kukkia.",
    "vi": "Ngôi nhà nằm gần sông và khu vườn đầy hoa.",
    "sw": "Nyumba iko karibu na mto na bustani imejaa maua.",
    "pl": "Dom stoi nad rzeką, a ogród jest pełen kwiatów.",
    "ru": "Дом стоит у реки, и в саду много цветов.",
    "bg": "Къщата е близо до реката и градината е пълна с цветя.",
    "hi": "घर नदी के पास है और बगीचा फूलों से भरा है।",
    "mr": "घर नदीजवळ आहे आणि बाग फुलांनी भरलेली आहे.",
    "kn": "ಮನೆ ನದಿಯ ಹತ್ತಿರ ಇದೆ ಮತ್ತು ತೋಟ ಹೂವುಗಳಿಂದ ತುಂಬಿದೆ.",
    "ta": "வீடு ஆற்றின் அருகில் உள்ளது, தோட்டம் பூக்களால் நிறைந்துள்ளது.",
    "ar": "البيت قريب من النهر والحديقة مليئة بالزهور.",
    "fa": "خانه نزدیک رودخانه است و باغ پر از گل است.",
    "he": "הבית נמצא ליד הנהר והגן מלא פרחים.",
    "th": "บ้านอยู่ใกล้แม่น้ำและสวนเต็มไปด้วยดอกไม้",
    "ja": "家は川の近くにあり、庭は花でいっぱいです。",
    "ko": "집은 강 근처에 있고 정원은 꽃으로 가득합니다.",
}


def check_instruction(
    instruction: str, response: str, parameters: dict[str, Any], criterion: str = "Strict"
) -> RewardResult:
    """Return the result for a row with one instruction."""
    verifier = InstructionFollowing(InstructionsVerifier.model_validate({"criterion": criterion}))
    return verifier.score(response, {"instruction_id_list": [instruction], "kwargs": [parameters]})


def follows(instruction: str, response: str, /, **parameters: Any) -> bool:
    """Return whether the response as it is follows the instruction."""
    return check_instruction(instruction, response, parameters).reward == 1.0


def reading(instruction: str, response: str, /, **parameters: Any) -> str:
    """Return the explanation of an instruction that is not followed, without its id."""
    explanation = check_instruction(instruction, response, parameters).explanation
    return explanation.removeprefix(f"not followed: {instruction} (").removesuffix(")")
